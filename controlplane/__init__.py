"""Who decides, and the one writer. Importing this package imports nothing heavy."""
