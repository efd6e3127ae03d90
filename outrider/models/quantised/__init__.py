"""Quantised tensors of published checkpoints: how they are found, checked and widened."""
