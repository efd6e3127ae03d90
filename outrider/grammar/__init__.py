"""Grammars of answers: what is accepted, and a process of its own that compiles them."""
