"""The language model: transformer, attention variants, KV cache, files."""
