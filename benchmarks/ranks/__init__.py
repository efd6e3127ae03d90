"""What several ranks add to a step."""
