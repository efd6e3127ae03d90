"""A load generator: any OpenAI-compatible endpoint, measured from outside."""
