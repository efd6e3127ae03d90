"""Filters: the score below which top-k, top-p or min-p rules a token out.

Sums are of integers and the exponential is our own, so no result depends on the other rows of the
batch or on the device.
"""

import math

import torch

from outrider.ops.compiled.why_not_compiled import is_compiled
from outrider.ops.sampling.sampling_columns import FilterTables, column_of

_COMPILED = "outrider.ops.compiled.floors_of_rows"

_MASS_BITS = 40  # the most likely token weighs 2^40, so the sum over a vocabulary fits in int64
_LEAST_EXPONENT = -64.0  # 2^-64 of the most likely token counts as zero
# 2^f = p(f) for 0 <= f < 1, a Chebyshev fit: relative error 1.2e-7
_EXP2 = (0.9999999, 0.6931545, 0.24014182, 0.055860337, 0.008949591, 0.001893754)
_SHIFTS = (21, 10, 0)  # of the three digits of a 32-bit word, 11, 11 and 10 bits wide
_NUM_BINS = 2**11 + 2  # the first and the last count what lies outside the searched interval


def filter_floors(
    scores: torch.Tensor,  # [n, vocab] of any float, unit stride along the vocabulary
    tables: FilterTables,
    rows: torch.Tensor,  # [n] int64
) -> torch.Tensor:  # [n] float32
    """The score below which the filters of each row rule a token out.

    Top-k first, then top-p of what top-k left, then min-p. Each filter keeps the tokens at or above
    a threshold, ties included and the most likely token always, so the highest threshold decides.
    """
    if scores.is_cuda:
        from outrider.ops.sampling.top_k_top_p_triton import filter_floors_triton

        return filter_floors_triton(scores, tables, rows)
    if scores.dtype == torch.float32 and scores.shape[1] and is_compiled(scores, _COMPILED):
        from outrider.ops.sampling.top_k_top_p_compiled import filter_floors_compiled

        return filter_floors_compiled(scores, tables, rows)
    return filter_floors_reference(scores, tables, rows)


def filter_floors_reference(
    scores: torch.Tensor,  # [n, vocab] float32
    tables: FilterTables,
    rows: torch.Tensor,  # [n]
) -> torch.Tensor:  # [n] float32
    """The same in plain torch."""
    temperature = column_of(tables.temperature, rows)  # [n, 1]
    temperature = torch.where(temperature > 0, temperature, 1.0)
    best = scores.amax(1, keepdim=True)
    floor = best + temperature * column_of(tables.log_min_p, rows)
    order = _order(scores)
    kth = _highest_with(order, torch.ones_like(order), column_of(tables.top_k, rows))
    mass = masses_reference(scores, best, temperature).masked_fill_(order < kth, 0)
    top_p = column_of(tables.top_p, rows).double()
    target = (mass.sum(1, keepdim=True) * top_p).ceil().long().clamp_min(1)
    nucleus = _value(torch.where(top_p < 1, _highest_with(order, mass, target), kth))
    return torch.maximum(torch.maximum(_value(kth), nucleus), floor).squeeze(1)


def _order(logits: torch.Tensor) -> torch.Tensor:  # [n, vocab] int64
    """Integers ordered as the logits are; equal logits, zeros of both signs too, are equal."""
    return _flip_((logits + 0.0).view(torch.int32)).long()


def _value(order: torch.Tensor) -> torch.Tensor:  # [n, 1] float32
    """The logit at this place in the order."""
    return _flip_(order.int()).view(torch.float32)


def _flip_(bits: torch.Tensor) -> torch.Tensor:
    """Reverse the order among negative floats, whose bits count backwards. Its own inverse."""
    return bits.bitwise_xor_((bits >> 31).bitwise_and_(0x7FFFFFFF))


def masses_reference(
    logits: torch.Tensor,  # [n, vocab]
    best: torch.Tensor,  # [n, 1] the largest logit
    temperature: torch.Tensor,  # [n, 1]
) -> torch.Tensor:  # [n, vocab] int64
    """Probabilities relative to the most likely token, in units of 2^-40."""
    exponent = (logits - best).mul_(math.log2(math.e) / temperature).clamp_min_(_LEAST_EXPONENT)
    whole = exponent.floor()
    fraction = exponent.sub_(whole)
    power = torch.full_like(fraction, _EXP2[-1])
    for coefficient in _EXP2[-2::-1]:
        power.mul_(fraction).add_(coefficient)
    bits = power.view(torch.int32)
    bits.add_(whole.add_(_MASS_BITS).mul_(2.0**23).int())  # times 2^(whole + 40)
    return power.long()


def _highest_with(
    order: torch.Tensor,  # [n, vocab] int64
    weights: torch.Tensor,  # [n, vocab] int64
    target: torch.Tensor,  # [n, 1] int64, from 1 to the sum of the weights
) -> torch.Tensor:  # [n, 1] int64
    """The highest place in the order such that all from there up weigh at least the target.

    Found digit by digit from histograms, in about a third of the time of a sort.
    """
    place = torch.full_like(target, -(2**31))
    for shift in _SHIFTS:
        bins = (order - place).bitwise_right_shift_(shift).clamp_(-1, _NUM_BINS - 2).add_(1)
        histogram = order.new_zeros((order.shape[0], _NUM_BINS)).scatter_add_(1, bins, weights)
        up_to = histogram.cumsum(1)  # [n, bins]
        chosen = torch.searchsorted(up_to, up_to[:, -1:] - target, right=True)  # [n, 1]
        place = place + ((chosen - 1) << shift)
    return place
