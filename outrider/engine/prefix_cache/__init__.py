"""Which KV pages are shared by which prefixes. No torch."""
