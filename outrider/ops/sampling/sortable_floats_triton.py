"""Floats as integers of the same order, alone or with a token's id in one word.

Other kernels call these functions.
"""
# Triton reads kernels as source; it has no types for them.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl

LOWEST_KEY = tl.constexpr(-(2**63))  # below the key of every token


@triton.jit
def order_of(values):
    """Integers in the order of float32 values; zeros of both signs are equal."""
    bits = tl.where(values == 0.0, 0.0, values).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def value_of(order):
    """The float32 value at this place in the order."""
    return (order ^ ((order >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def key_of(values, ids):
    """Words whose maximum is the largest value, NaN first of all, at its lowest id, as in torch."""
    order = tl.where(values != values, 0x7FFFFFFF, order_of(values))
    return (order.to(tl.int64) << 32) | (0x7FFFFFFF - ids).to(tl.int64)


@triton.jit
def id_of(key):
    """The id in a key."""
    return 0x7FFFFFFF - (key & 0x7FFFFFFF)


@triton.jit
def key_value(key):
    """The value in a key."""
    return value_of((key >> 32).to(tl.int32))
