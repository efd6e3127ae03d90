"""LoRA adapters of a decoder: how they are stored, and where their weights are on the device."""
