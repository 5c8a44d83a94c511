"""What `pagetrail bench` runs: one module per bench, each with `run(quick) -> dict`."""
