"""The threshold of top-k or top-p: the highest place in the order that has enough above it.

The kernels of `top_k_top_p_triton.py` call these functions. A row's values may be of any float
type; all sums are exact.
"""
# Triton reads kernels as source; it has no types for them.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl

from outrider.ops.sampling.sortable_floats_triton import order_of

PIVOTS = tl.constexpr(8)
LOWEST = tl.constexpr(-0x7F800001)  # the place of minus infinity in the order

_LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def mass_of(z, best, temperature):
    """`masses_reference`: int64 probabilities relative to the best score, in units of 2^-40."""
    scale = tl.div_rn(1.0, temperature) * _LOG2_E
    exponent = tl.maximum((z - best) * scale, -64.0)
    whole = tl.floor(exponent)
    fraction = exponent - whole
    power = fraction * 0.001893754 + 0.008949591
    power = power * fraction + 0.055860337
    power = power * fraction + 0.24014182
    power = power * fraction + 0.6931545
    power = power * fraction + 0.9999999
    bits = power.to(tl.int32, bitcast=True)
    bits += ((whole + 40.0) * 8388608.0).to(tl.int32)  # times 2^(whole + 40)
    return bits.to(tl.float32, bitcast=True).to(tl.int64)


@triton.jit
def pivots_below(best, unit):
    """Eight places in the order, from just below the best to the lowest, with growing steps."""
    index = tl.arange(0, PIVOTS)
    step = (index + 1).to(tl.float32)
    place = order_of(best - unit * (0.25 * step * step))
    return tl.where(index == PIVOTS - 1, LOWEST, place)


@triton.jit
def weigh_above(values, first, end, pivots, best, temperature, by_mass, TILE: tl.constexpr):
    """Number and weight, which is mass or again number, of the values at or above each pivot."""
    counts = tl.zeros([PIVOTS], tl.int32)
    weights = tl.zeros([PIVOTS], tl.int64)
    for start in range(first, end, TILE):
        columns = start + tl.arange(0, TILE)
        inside = columns < end
        z = tl.load(values + columns, mask=inside, other=float("-inf")).to(tl.float32)
        above = (order_of(z)[None, :] >= pivots[:, None]) & inside[None, :]  # [pivots, TILE]
        number = tl.sum(above.to(tl.int32), 1)
        counts += number
        if by_mass:
            mass = mass_of(z, best, temperature)
            weights += tl.sum(tl.where(above, mass[None, :], 0), 1)
        else:
            weights += number.to(tl.int64)
    return counts, weights


@triton.jit
def narrow(values, end, low, high, target, best, temperature, by_mass, TILE: tl.constexpr):
    """An eighth of the interval [low, high) of the order. The values from `low` up weigh at least
    the target, those from `high` up do not. Also the number of values from `low` up.
    """
    step = (high - low + PIVOTS - 1) // PIVOTS
    pivots = (low + step * tl.arange(0, PIVOTS)).to(tl.int32)
    number, weight = weigh_above(values, 0, end, pivots, best, temperature, by_mass, TILE)
    is_enough = weight >= target
    low += step * tl.maximum(tl.sum(is_enough.to(tl.int32), 0) - 1, 0)
    count = tl.min(tl.where(is_enough, number, end), 0)
    return low, tl.minimum(high, low + step), count


@triton.jit
def share_of(total, top_p):
    """The share top_p of the total mass, rounded up, at least 1."""
    share = tl.ceil(total.to(tl.float64) * top_p.to(tl.float64)).to(tl.int64)
    return tl.maximum(share, 1)


@triton.jit
def gather_from(values, first, end, low, candidates, TILE: tl.constexpr):
    """Write the values of [first, end) that are at or above `low` to the list of candidates."""
    size = 0
    for start in range(first, end, TILE):
        columns = start + tl.arange(0, TILE)
        z = tl.load(values + columns, mask=columns < end, other=float("-inf"))
        is_kept = (order_of(z.to(tl.float32)) >= low) & (columns < end)
        at = size + tl.cumsum(is_kept.to(tl.int32), 0) - 1
        tl.store(candidates + at, z, mask=is_kept)
        size += tl.sum(is_kept.to(tl.int32), 0)


@triton.jit
def first_window(
    counts,
    weights,
    num_parts,
    width,
    top_k,
    top_p,
    best,
    temperature,
    PARTS: tl.constexpr,
):
    """The interval [low, high) of the order with the threshold, from the sums above the pivots.

    Also the weight to be reached, the number of values from `low` up, and the pivot that is `low`.
    """
    by_mass = top_k >= width
    index = tl.arange(0, PIVOTS)
    parts = tl.arange(0, PARTS)
    at = parts[:, None] * PIVOTS + index[None, :]
    is_part = (parts < num_parts)[:, None]
    number = tl.sum(tl.load(counts + at, mask=is_part, other=0), 0)  # [pivots]
    weight = tl.sum(tl.load(weights + at, mask=is_part, other=0), 0)
    target = tl.where(by_mass, share_of(tl.max(weight, 0), top_p), top_k)
    places = pivots_below(best, tl.where(by_mass, temperature, 1.0)).to(tl.int64)
    # Pivots are in descending order: after those below the target comes the first that reaches it.
    chosen = tl.minimum(tl.sum((weight < target).to(tl.int32), 0), PIVOTS - 1)
    top = order_of(best).to(tl.int64) + 1
    low = tl.min(tl.where(index <= chosen, places, top), 0)
    high = tl.min(tl.where(index < chosen, places, top), 0)
    count = tl.max(tl.where(index == chosen, number, 0), 0)
    return low, high, target, count, chosen


@triton.jit
def search_from(
    values,
    candidates,
    width,
    low,
    high,
    target,
    count,
    top_k,
    top_p,
    best,
    temperature,
    TILE: tl.constexpr,
    ROOM: tl.constexpr,
    GRAIN: tl.constexpr,
):
    """The place in the order from which top-k and top-p keep the values of a row.

    The first of the two is searched in [low, high). `count` values lie from `low` up. If there is
    room for them, they are already in the list of candidates.
    """
    by_mass = top_k >= width
    is_listed = count <= ROOM
    while (count > ROOM) & (high - low > GRAIN):
        low, high, count = narrow(
            values, width, low, high, target, best, temperature, by_mass, TILE
        )
    if (count <= ROOM) & (is_listed == 0):
        gather_from(values, 0, width, low, candidates, TILE)
        tl.debug_barrier()  # other threads read the list than wrote it
    end = width
    if count <= ROOM:
        values = candidates
        end = count
    while high - low > GRAIN:
        low, high, count = narrow(values, end, low, high, target, best, temperature, by_mass, TILE)
    if (by_mass == 0) & (top_p < 1.0):  # the share of what top-k left
        everywhere = tl.zeros([PIVOTS], tl.int32) + low.to(tl.int32)
        _number, mass = weigh_above(values, 0, end, everywhere, best, temperature, True, TILE)
        target = share_of(tl.max(mass, 0), top_p)
        high = order_of(best).to(tl.int64) + 1
        while high - low > GRAIN:
            low, high, count = narrow(values, end, low, high, target, best, temperature, True, TILE)
    return low.to(tl.int32)
