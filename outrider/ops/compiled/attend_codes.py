"""Attention over pages of 8-bit codes, as `attend_keys` does it over float32.

A code is looked up in a table of 256 numbers, which also gives NaN. Sums have the same order, so
the bits are those of attention over the widened numbers.
"""

import numpy as np
from numba import carray

from outrider.ops.compiled.address import pointer_to
from outrider.ops.compiled.attend_keys import (
    ENTRY_BYTES,
    MOST_GROUPS,
    NUM_GROUP,
    dot,
    find_visible,
    sum_of,
)
from outrider.ops.compiled.exponential import exp_of
from outrider.ops.compiled.kernel_cache import callback, compiled
from outrider.ops.compiled.thread_team import num_threads, thread_index

_NUM_GIVEN = 11
_MANY = 1 << 40
_NUM_CODES = 256


@compiled()
def _read_codes(
    query: np.ndarray,  # [dim]
    pool: np.ndarray,  # [slots, 2 * kv_heads, dim] uint8
    table: np.ndarray,  # [256]
    head: int,  # of keys
    visible: np.ndarray,  # [n] slots
    weights: np.ndarray,  # [n] scratch
    factor: float,
    out: np.ndarray,  # [dim]
) -> None:
    """The mean of the visible values, weighted by the softmax of the scores of their keys."""
    largest = np.float32(-np.inf)
    for place in range(len(visible)):
        codes = pool[visible[place], head]
        for channel in range(len(out)):
            out[channel] = table[codes[channel]]  # the key: `out` is free until the values
        score = dot(query, out) * factor
        weights[place] = score
        largest = max(largest, score)
    for place in range(len(visible)):
        weights[place] = exp_of(weights[place] - largest)
    value_head = head + pool.shape[1] // 2
    out[:] = np.float32(0.0)
    for place in range(len(visible)):
        weight, codes = weights[place], pool[visible[place], value_head]
        for channel in range(len(out)):
            out[channel] += weight * table[codes[channel]]
    inverse = np.float32(1.0) / sum_of(weights)
    for channel in range(len(out)):
        out[channel] *= inverse


@compiled()
def _attend(given: np.ndarray, group: np.ndarray, factor: float) -> None:
    """Each thread computes every n-th pair of query token and head: later tokens see more keys."""
    stride, heads, vectors, dim = given[2], given[3], given[4], given[5]
    first, tokens, keys = group[0], group[1], group[6]
    queries = carray(pointer_to(given[1]), (_MANY, stride), np.float32)
    pool = carray(pointer_to(given[6]), (_MANY, vectors, dim), np.uint8)
    out = carray(pointer_to(given[8]), (_MANY, heads, dim), np.float32)
    table = carray(pointer_to(given[10]), (_NUM_CODES,), np.float32)
    thread, per_key = thread_index(), heads // (vectors // 2)
    scratch = given[9] + thread * keys * ENTRY_BYTES
    visible = carray(pointer_to(scratch), (keys,), np.int64)
    weights = carray(pointer_to(scratch + keys * 8), (keys,), np.float32)
    last, num = -1, 0
    for item in range(thread, tokens * heads, num_threads()):
        token, head = item // heads, item % heads
        if token != last:
            last, num = token, find_visible(group, token, visible)
        _read_codes(
            queries[first + token, head * dim : (head + 1) * dim],
            pool,
            table,
            head // per_key,
            visible[:num],
            weights[:num],
            factor,
            out[first + token, head],
        )


@callback("void(voidptr)")
def attend_code_rows(pointer: int) -> None:
    """As `attend_rows`, with 10 the table of codes; then the groups."""
    given = carray(pointer, (_NUM_GIVEN + MOST_GROUPS * NUM_GROUP,), np.int64)
    factor = carray(pointer_to(given[7]), (1,), np.float32)[0]
    for number in range(given[0]):
        start = _NUM_GIVEN + number * NUM_GROUP
        _attend(given, given[start : start + NUM_GROUP], factor)
