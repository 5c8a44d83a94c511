"""Every evaluator: named, versioned, pure functions over recorded inputs."""
