"""Frozen records that cross borders: between processes, and between the engine's two halves."""
