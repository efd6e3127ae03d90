"""Scores and candidate numbers as integers of the same order, for other kernels to call."""
# Triton reads kernels as source; it has no types for them.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl

LEAST_TILE = 16  # elements of a tile, so that small trees share one compiled kernel
LOWEST_RANK = tl.constexpr(-(2**63))
_LOW_BITS = tl.constexpr(0x7FFFFFFF)
MINUS_INFINITY = tl.constexpr(-2139095041)  # its bits as `rank_of` orders them


@triton.jit
def rank_of(scores, numbers, is_real):
    """Score and number in one integer: the largest is the best, of equal scores the first."""
    bits = (scores + 0.0).to(tl.int32, bitcast=True)  # -0.0 becomes 0.0
    ordered = bits ^ ((bits >> 31) & _LOW_BITS)
    key = (ordered.to(tl.int64) << 32) | (numbers ^ _LOW_BITS).to(tl.int64)
    return tl.where(is_real, key, LOWEST_RANK)


@triton.jit
def number_of(key):
    """The number in a key."""
    return ((key & _LOW_BITS) ^ _LOW_BITS).to(tl.int32)


@triton.jit
def score_of(key):
    """The score in a key."""
    ordered = (key >> 32).to(tl.int32)
    return (ordered ^ ((ordered >> 31) & _LOW_BITS)).to(tl.float32, bitcast=True)


@triton.jit
def best_keys(keys, most, BEST: tl.constexpr):
    """The `most` largest keys, in order, then `LOWEST_RANK`."""
    channel = tl.arange(0, BEST)
    best = tl.full([BEST], LOWEST_RANK, tl.int64)
    for i in range(most):
        largest = tl.max(keys, axis=0)
        best = tl.where(channel == i, largest, best)
        keys = tl.where(keys == largest, LOWEST_RANK, keys)
    return best


@triton.jit
def just_below(x):
    """The next smaller float."""
    bits = x.to(tl.int32, bitcast=True)
    below = tl.where(x > 0.0, bits - 1, bits + 1)
    below = tl.where(x == 0.0, -2147483647, below)  # the negative float nearest to 0
    below = tl.where(x == float("-inf"), bits, below)
    return below.to(tl.float32, bitcast=True)


def num_warps_of(width: int) -> int:
    """One warp reduces without waiting for others; a wide tile needs the registers of more."""
    return 1 if width <= 256 else 4 if width <= 1024 else 8
