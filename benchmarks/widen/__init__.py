"""A small model inside a larger body: the cost of the body, the text and acceptance of the model."""
