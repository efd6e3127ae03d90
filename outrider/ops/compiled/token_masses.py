"""Probabilities of tokens relative to the best one: integers with the bits of `top_k_top_p.py`."""

import numpy as np

from outrider.ops.compiled.exponential import bits_of, float_of
from outrider.ops.compiled.highest_place import place_of, value_at
from outrider.ops.compiled.kernel_cache import compiled

PART = 64  # scores that are compared before they are looked at one by one

# These constants stand in `top_k_top_p`, too; a test compares the results.
_MASS_BITS, _MANTISSA_BITS = np.int32(40), np.int32(23)
_LEAST_EXPONENT = np.float32(-64.0)
_LOG2_E = np.float32(1.4426950408889634)
_C0, _C1, _C2 = np.float32(0.9999999), np.float32(0.6931545), np.float32(0.24014182)
_C3, _C4, _C5 = np.float32(0.055860337), np.float32(0.008949591), np.float32(0.001893754)
_LEAST_MASS = 0.25  # tokens below it weigh nothing
_MARGIN = 0.01  # of a binary exponent, much more than rounding
_ONE = np.float32(1.0)


@compiled()
def scale_of(temperature: np.float32) -> np.float32:
    """Binary exponents per score; rounded twice, as torch divides a number by a tensor."""
    scale: np.float32 = _ONE / temperature * _LOG2_E
    return scale


@compiled()
def mass_of(score: np.float32, best: np.float32, scale: np.float32) -> np.int64:
    """2^40 for the best score. No operation is fused: that would change bits."""
    exponent = (score - best) * scale
    exponent = exponent if exponent > _LEAST_EXPONENT else _LEAST_EXPONENT
    whole = np.int32(exponent)
    whole = np.int32(whole - np.int32(np.float32(whole) > exponent))
    fraction = exponent - np.float32(whole)
    power = ((_C5 * fraction + _C4) * fraction + _C3) * fraction + _C2
    power = (power * fraction + _C1) * fraction + _C0
    shifted = np.int32(np.int32(whole + _MASS_BITS) << _MANTISSA_BITS)
    return np.int64(float_of(np.int32(bits_of(power) + shifted)))


@compiled()
def place_from(best: np.float32, scale: np.float32, mass: float) -> np.int32:
    """The place from which on tokens weigh at least so much, or a little less."""
    exponent = np.log2(max(mass, _LEAST_MASS)) - np.float64(_MASS_BITS) - _MARGIN
    return place_of(np.float32(best + exponent / scale))


@compiled()
def has_from(scores: np.ndarray, bound: np.float32) -> bool:
    """Whether a score is not below the bound, or NaN; counted, as in `larger_values.py`."""
    num = np.int32(0)
    for token in range(len(scores)):
        num = np.int32(num + np.int32(not scores[token] < bound))
    return bool(num)


@compiled()
def _mass_of_part(scores: np.ndarray, best: np.float32, scale: np.float32) -> np.int64:
    total = np.int64(0)
    for token in range(len(scores)):
        total += mass_of(scores[token], best, scale)
    return total


@compiled()
def mass_of_all(scores: np.ndarray, best: np.float32, scale: np.float32) -> np.int64:
    total, bound = np.int64(0), value_at(place_from(best, scale, 0.0))
    for first in range(0, len(scores), PART):
        part = scores[first : first + PART]
        if has_from(part, bound):
            total += _mass_of_part(part, best, scale)
    return total


@compiled()
def weigh(
    places: np.ndarray, best: np.float32, scale: np.float32, weights: np.ndarray
) -> np.int64:  # the sum
    total = np.int64(0)
    for index in range(len(places)):
        weights[index] = mass_of(value_at(places[index]), best, scale)
        total += weights[index]
    return total
