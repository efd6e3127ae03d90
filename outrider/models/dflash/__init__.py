"""Heads that draft a block in one forward pass: DFlash, DSpark."""
