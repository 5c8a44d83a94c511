"""A deterministic simulator of the cluster: production machines under every fault we can name."""
