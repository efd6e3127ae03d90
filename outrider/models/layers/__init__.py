"""The pieces a decoder is made of. Each owns its weights and is a pure function of its input."""
