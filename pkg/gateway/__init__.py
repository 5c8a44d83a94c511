"""The process that clients and workers meet in: the router, and HTTP before it."""
