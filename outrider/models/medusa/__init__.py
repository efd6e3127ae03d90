"""Medusa: one small head for each draft, on the final hidden state of the target."""
