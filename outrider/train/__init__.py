"""Trains draft heads on the target's own answers. Uses the engine; nothing uses it."""
