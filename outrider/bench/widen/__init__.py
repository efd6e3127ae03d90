"""Small models inside larger bodies: the cost of the body, the text and acceptance of the model."""
