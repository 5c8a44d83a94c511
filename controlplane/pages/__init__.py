"""One owner of pages: leases, routes, kept prompts. Pure: no I/O, no clock."""
