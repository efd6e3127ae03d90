"""`outrider bench acceptance`: how many drafts are kept, by drafter, tree and temperature."""
