"""Loops for CPUs that numba compiles on the user's machine."""
