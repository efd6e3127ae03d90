"""Draft trees: growth, filled plans, verify, commit, and hidden states of drafters."""
