"""The fields of every kind of fact, one frozen struct each; ``catalog.facts`` is their table."""
