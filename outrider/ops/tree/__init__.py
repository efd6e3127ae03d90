"""Draft trees: growing, filling plans, verifying, committing, and what drafters carry over."""
