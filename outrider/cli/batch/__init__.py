"""Offline batches: a file of prompts in, a file of answers out, resumable at any point."""
