"""The score below which filters rule a token out, with the bits of `top_k_top_p.py`.

Most tokens are far below a threshold. So a pass over the row finds a bound that is not above it,
and only the tokens from the bound up are searched. A team's function; the array of integers:

    0 rows, 1 scores of a row, 2 numbers from row to row of the scores, 3 scores float32
    4 rows of the tables int64, 5 temperatures, 6 top-p and 7 log min-p float32, 8 top-k int64
    9 numbers from row to row of the reals, 10 of top-k
    11 places int32 and 12 weights int64 [threads, scores of a row], 13 bins int64
       [threads, NUM_BINS]: scratch
    14 floors float32 [rows]: written
"""

from typing import NamedTuple

import numpy as np
from numba import carray

from outrider.ops.compiled.address import float32_at, int64_at, pointer_to
from outrider.ops.compiled.exponential import bits_of, float_of
from outrider.ops.compiled.highest_place import NUM_BINS, highest_place, place_of, value_at
from outrider.ops.compiled.kernel_cache import callback, compiled
from outrider.ops.compiled.openmp import num_threads, thread_index
from outrider.ops.compiled.token_masses import (
    PART,
    has_from,
    mass_of_all,
    place_from,
    scale_of,
    weigh,
)

NUM_GIVEN = 15
_COLUMNS = 1024  # of which every one gives its largest score, to find a bound for top-k
_LOWEST, _HIGHEST = np.int32(-0x7F800001), np.int32(0x7F800000)  # the places of both infinities
_FIRST, _LAST = np.int32(-0x80000000), np.int32(0x7FFFFFFF)
_NAN, _INF, _ONE = np.float32(np.nan), np.float32(np.inf), np.float32(1.0)
_GUESSES = (8.0, 1.0, 0.0)  # a few candidates, as many as can be needed, all that weigh anything


class _Filters(NamedTuple):
    """The filters of a row."""

    temperature: np.float32
    top_p: np.float32
    log_min_p: np.float32
    top_k: np.int64


class _Scratch(NamedTuple):
    """Room for gathered tokens."""

    places: np.ndarray  # [scores of a row] int32
    weights: np.ndarray  # [scores of a row] int64
    bins: np.ndarray  # [NUM_BINS] int64


@compiled()
def _place_range(scores: np.ndarray) -> tuple[np.int32, np.int32]:
    """The lowest and the highest place; beyond the infinities if a score is NaN."""
    low, high = _LAST, _FIRST
    for token in range(len(scores)):
        place = place_of(scores[token])
        low, high = min(low, place), max(high, place)
    return low, high


@compiled()
def _column_places(scores: np.ndarray, places: np.ndarray) -> None:
    """The highest place of the tokens i, i + columns, i + 2 columns, ... for every i."""
    for column in range(len(places)):
        places[column] = _FIRST
    for first in range(0, len(scores), len(places)):
        part = scores[first : first + len(places)]
        for column in range(len(part)):
            places[column] = max(places[column], place_of(part[column]))


@compiled()
def _gather(scores: np.ndarray, lowest: np.int32, places: np.ndarray) -> np.int64:
    """The places of the scores that are not below this one; returns how many.

    Every score is written and few are counted, which needs no branch. The index has no sign,
    because numba looks whether one with a sign counts from the end.
    """
    num, bound = np.uint64(0), value_at(lowest)
    for first in range(0, len(scores), PART):
        part = scores[first : first + PART]
        if not has_from(part, bound):
            continue
        for token in range(len(part)):
            places[num] = bits_of(part[token])
            num = np.uint64(num + np.uint64(part[token] >= bound))
    for index in range(num):
        places[index] = place_of(float_of(places[index]))
    return np.int64(num)


@compiled()
def _kth_place(scores: np.ndarray, k: np.int64, low: np.int32, scratch: _Scratch) -> np.int32:
    """The place of the k-th best score. It is not below the k-th best of columns."""
    places, weights, bins = scratch
    columns, bound = min(_COLUMNS, len(scores)), low
    if k <= columns:
        _column_places(scores, places[:columns])
        weights[:columns] = 1
        bound = highest_place(places[:columns], weights[:columns], k, bins)
    num = _gather(scores, bound, places)
    weights[:num] = 1
    return highest_place(places[:num], weights[:num], k, bins)


@compiled()
def _target_of(total: np.int64, top_p: np.float32) -> np.int64:
    return max(np.int64(np.ceil(np.float64(total) * np.float64(top_p))), np.int64(1))


@compiled()
def _nucleus_place(
    scores: np.ndarray,
    top_p: np.float32,
    best: np.float32,
    scale: np.float32,
    low: np.int32,
    kth: np.int32,
    scratch: _Scratch,
) -> np.int32:
    """The place of the last token that top-p keeps, of those that top-k left."""
    places, weights, bins = scratch
    if kth > low:
        num = _gather(scores, kth, places)
        target = _target_of(weigh(places[:num], best, scale, weights), top_p)
        return highest_place(places[:num], weights[:num], target, bins)
    total = mass_of_all(scores, best, scale)
    target = _target_of(total, top_p)
    spare = np.float64(total - target) / len(scores)  # tokens below it may all be left out
    num = np.int64(0)
    for factor in _GUESSES:
        num = _gather(scores, place_from(best, scale, factor * spare), places)
        if weigh(places[:num], best, scale, weights) >= target:
            break
    return highest_place(places[:num], weights[:num], target, bins)


@compiled()
def _floor_of(scores: np.ndarray, filters: _Filters, scratch: _Scratch) -> np.float32:
    """NaN, which rules nothing out, if a score is NaN, or the best one infinite and top-p on."""
    low, high = _place_range(scores)
    if low < _LOWEST or high > _HIGHEST:
        return _NAN
    temperature = filters.temperature if filters.temperature > 0 else _ONE
    best, scale, place = value_at(high), scale_of(temperature), low
    if filters.top_k < len(scores):
        place = _kth_place(scores, max(filters.top_k, np.int64(1)), low, scratch)
    if filters.top_p < 1:
        if not (abs(best) < _INF and scale < _INF):
            return _NAN
        place = _nucleus_place(scores, filters.top_p, best, scale, low, place, scratch)
    floor, value = best + temperature * filters.log_min_p, value_at(place)
    return value if floor <= value else floor


@compiled()
def _filters_of(given: np.ndarray, row: int) -> _Filters:
    at, top_k = row * given[9], int64_at(given[8])[row * given[10]]
    temperature, top_p = float32_at(given[5])[at], float32_at(given[6])[at]
    return _Filters(temperature, top_p, float32_at(given[7])[at], top_k)


@callback("void(voidptr)")
def find_floors(pointer: int) -> None:
    given = carray(pointer, (NUM_GIVEN,), np.int64)
    width, thread = given[1], thread_index()
    scratch = _Scratch(
        carray(pointer_to(given[11] + 4 * thread * width), (width,), np.int32),
        carray(pointer_to(given[12] + 8 * thread * width), (width,), np.int64),
        carray(pointer_to(given[13] + 8 * thread * NUM_BINS), (NUM_BINS,), np.int64),
    )
    for item in range(thread, given[0], num_threads()):
        filters = _filters_of(given, int64_at(given[4])[item])
        scores = carray(pointer_to(given[3] + 4 * item * given[2]), (width,), np.float32)
        float32_at(given[14])[item] = _floor_of(scores, filters, scratch)
