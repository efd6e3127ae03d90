"""Decode steps, speculative iterations and prefill of one engine, each beside its floor."""
