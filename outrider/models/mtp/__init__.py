"""Draft modules that lie inside a target's own checkpoint: multi-token prediction, NextN."""
