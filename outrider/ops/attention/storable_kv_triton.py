"""Keys and values as a pool stores them: numbers that are not finite stay in keys, as in
`write_kv.py`. Kernels that write keys and values call this function.
"""
# Triton reads kernels as source; it has no types for them.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl


@triton.jit
def is_finite(values):
    """Whether each number is finite."""
    return tl.abs(values.to(tl.float32)) < float("inf")


@triton.jit
def storable(values, is_key):
    """The values, in the type of the pool: NaN in place of keys, zero in place of values."""
    instead = tl.where(is_key, float("nan"), 0.0).to(values.dtype)
    return tl.where(is_finite(values), values, instead)


@triton.jit
def marked_key(key, value):
    """The channels of a key: NaN where those of its value are not finite."""
    return tl.where(is_finite(value), key, float("nan")).to(key.dtype)
