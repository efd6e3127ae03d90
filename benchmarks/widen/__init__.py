"""A small model in a larger body: it costs what the body costs, and says what the model says."""
