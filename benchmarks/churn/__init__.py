"""Requests that come and go."""
