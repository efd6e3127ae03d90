"""Decoding, speculative iterations and prefill of one engine, each number beside its floor."""
