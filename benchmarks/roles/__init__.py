"""Prefill and decode in different servers."""
