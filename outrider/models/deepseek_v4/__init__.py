"""DeepSeek-V4: compressed sparse attention, hyper-connections, experts on every layer."""
