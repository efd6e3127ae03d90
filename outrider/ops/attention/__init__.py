"""Paged attention of decode rows and prompt chunks, over keys and values or over latents."""
