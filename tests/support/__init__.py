"""Real small parts that tests share."""
