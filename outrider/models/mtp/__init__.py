"""Draft modules inside the target's checkpoint: multi-token prediction (MTP), also called NextN."""
