"""A small model in a larger body: it has the cost of the body, and the answers of the model."""
