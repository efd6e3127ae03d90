"""From logits to a token: noise, filters, penalties, log-probabilities."""
