"""The engines we measure ourselves against, and ours behind the same protocol."""
