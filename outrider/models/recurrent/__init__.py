"""Layers with a recurrent state per row (Qwen3-Next, Qwen3.5): config, tensors, cache, plan."""
