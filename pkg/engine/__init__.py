"""The engine: weights, tokenizer, decoder over pages, arena and sampling. It decides nothing."""
