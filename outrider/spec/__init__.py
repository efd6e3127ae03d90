"""Speculation: drafters propose trees, one verify judges them, one commit keeps the outcome."""
