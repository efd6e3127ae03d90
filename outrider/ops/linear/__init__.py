"""Linear layers and what is fused to them."""
