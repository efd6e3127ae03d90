"""Sampling: device tables of the parameters, flags of what a step needs, and the sampler."""
