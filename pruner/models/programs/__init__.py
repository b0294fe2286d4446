"""Measured programs as tensors: the store, batches, tokens, normalisation."""
