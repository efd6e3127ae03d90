"""Decoder families as data: what a model folder says, its weights, and the one forward pass."""
