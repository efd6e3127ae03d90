"""A tiny model with a tokenizer."""

from support.tiny_folder import tiny_folder

__all__ = ["tiny_folder"]
