"""Tier machines: restore, checkpoint, promotion as pure transitions."""
