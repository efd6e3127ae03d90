"""Images in prompts: where they come from, their limits, and the tokens that they become."""
