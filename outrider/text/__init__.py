"""Text at the edges of the engine: ids to and from text, chat templates, stop strings. No torch."""
