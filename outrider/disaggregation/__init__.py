"""Prefill and decode in different processes: offers of KV, the side channel, and transports."""
