"""Structured output: compiled grammars, the process that compiles them, masks of rows."""
