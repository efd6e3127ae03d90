"""The server: an HTTP front in one process, the engine in another."""
