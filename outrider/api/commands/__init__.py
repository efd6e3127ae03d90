"""The commands, one file each. Torch and the engine are imported only when a command runs."""
