"""Writes the reference documents that follow from the code; one module for each document."""
