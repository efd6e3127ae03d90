"""The tiny model of the benchmarks."""

from support.tiny_folder import tiny_folder

__all__ = ["tiny_folder"]
