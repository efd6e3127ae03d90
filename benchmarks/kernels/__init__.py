"""Timings of single kernels on a GPU: `python -m benchmarks.kernels.NAME` runs a file."""
