"""Timings of single kernels on a GPU. Each file is a script: `python -m benchmarks.kernels.NAME`."""
