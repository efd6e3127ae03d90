"""Vision towers: from the pixels of an image to embeddings in a prompt."""
