"""Reconstruct, verify and explain recorded decisions."""
