"""Between users and an engine: prompts become submissions, updates become outputs. No torch."""
