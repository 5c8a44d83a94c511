"""pagetrail: paged KV-cache serving whose decisions can be re-derived from its fact log."""

__version__ = "0.1.0"
