"""The host's cost of a step: the real engine over a device that does nothing."""
