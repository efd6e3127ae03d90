"""Attention backends: one protocol (bind, fill, run), one file per backend."""
