"""Where chunks are stored: the I/O that the tier machines ask for."""
