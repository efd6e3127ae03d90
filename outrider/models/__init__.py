"""Decoder families as data: config, weights, and the one forward pass."""
