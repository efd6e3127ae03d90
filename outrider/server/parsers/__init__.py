"""How families of models write reasoning and tool calls. One file per family, one registry."""
