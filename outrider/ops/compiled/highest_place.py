"""Places of floats in their order, and the highest place from which on they weigh enough."""

import numpy as np

from outrider.ops.compiled.exponential import bits_of, float_of
from outrider.ops.compiled.kernel_cache import compiled

NUM_BINS = 2048  # of a histogram, for a third of the bits of a place
_ZERO = np.float32(0.0)
_SIGN, _ALL_BUT_SIGN = np.int32(31), np.int32(0x7FFFFFFF)


@compiled()
def place_of(value: np.float32) -> np.int32:
    """Integers ordered as floats are; zeros of both signs are equal."""
    bits = bits_of(value + _ZERO)
    return np.int32(bits ^ np.int32(np.int32(bits >> _SIGN) & _ALL_BUT_SIGN))


@compiled()
def value_at(place: np.int32) -> np.float32:
    """The float at this place."""
    bits = np.int32(place)
    flipped = np.int32(bits ^ np.int32(np.int32(bits >> _SIGN) & _ALL_BUT_SIGN))
    value: np.float32 = float_of(flipped)
    return value


@compiled()
def highest_place(
    places: np.ndarray,  # [n] int32, at least one; overwritten
    weights: np.ndarray,  # [n] int64, none negative; overwritten
    target: np.int64,
    bins: np.ndarray,  # [NUM_BINS] int64 scratch
) -> np.int32:
    """The highest place such that all from there up weigh at least the target, or the lowest.

    A histogram finds an interval of places, the next one divides it; three at most.
    """
    num, low, high = np.int64(len(places)), np.int64(places[0]), np.int64(places[0])
    for index in range(num):
        low, high = min(low, np.int64(places[index])), max(high, np.int64(places[index]))
    while True:
        shift = 0
        while (high - low) >> shift >= NUM_BINS:
            shift += 1
        _fill(bins, places[:num], weights[:num], low, shift)
        chosen = (high - low) >> shift
        while chosen > 0 and bins[chosen] < target:
            target -= bins[chosen]
            chosen -= 1
        low += chosen << shift
        if shift == 0:
            return np.int32(low)
        high = min(high, low + (1 << shift) - 1)
        num = _keep(places[:num], weights[:num], low, high)


@compiled()
def _fill(
    bins: np.ndarray, places: np.ndarray, weights: np.ndarray, low: np.int64, shift: int
) -> None:
    for chosen in range(NUM_BINS):
        bins[chosen] = 0
    for index in range(len(places)):
        bins[(np.int64(places[index]) - low) >> shift] += weights[index]


@compiled()
def _keep(places: np.ndarray, weights: np.ndarray, low: np.int64, high: np.int64) -> np.int64:
    """Move what lies in the interval to the front; returns how many."""
    num = np.int64(0)
    for index in range(len(places)):
        place, weight = places[index], weights[index]
        places[num], weights[num] = place, weight
        num += np.int64(low <= place <= high)
    return num
