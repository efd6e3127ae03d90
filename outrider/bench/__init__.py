"""Benchmarks: every number beside its floor and a peer measured in the same run."""
