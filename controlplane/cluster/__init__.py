"""Router and worker machines, candidates, the model-free worker and its simulator."""
