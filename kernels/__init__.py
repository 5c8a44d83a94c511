"""Device math: knows tensors, pages and slots; nothing of requests or facts."""
