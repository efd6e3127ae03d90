"""KV pages on the device, and the attention backends that read them."""
