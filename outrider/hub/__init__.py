"""Where weights come from: aliases, cache, hub, package index, GGUF conversion. No torch."""
