"""What a step costs the host: the real engine over a device that does nothing."""
