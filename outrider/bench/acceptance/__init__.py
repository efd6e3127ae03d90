"""`outrider bench acceptance`: how many drafts are accepted, by drafter, tree and temperature."""
