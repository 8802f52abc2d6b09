"""Corpora, tokenizer, token stores, order of samples. Free of torch, except `loader`."""
