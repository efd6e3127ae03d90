"""DeepSeek-V4 attention: compressed entries, the indexer, ring buffers."""
