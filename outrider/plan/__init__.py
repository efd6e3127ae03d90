"""Frozen records of one step on the device: its shape, its plan, the draft tree and the verdict."""
