"""Token ids to and from text, chat templates, stop strings. No torch."""
