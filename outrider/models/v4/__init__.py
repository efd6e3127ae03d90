"""DeepSeek-V4: compressed sparse attention, hyper-connections, and experts on every layer."""
