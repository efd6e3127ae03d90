"""Attention over pages in place: compiled functions that every thread of a team runs.

A query token and head reads its visible keys in the order of their slots, which is the order of
their positions, also along the path of a tree. Nothing else enters its sums. So their bits do not
depend on other queries, on masked keys, or on what unused slots hold.

A group of query tokens is `NUM_GROUP` integers:

    0 first query token, 1 how many, 2 places, 3 slots, 4 mask, 5 width, 6 keys
"""

import numpy as np
from numba import carray

from outrider.ops.compiled.address import pointer_to
from outrider.ops.compiled.exponential import exp_of
from outrider.ops.compiled.kernel_cache import callback, compiled
from outrider.ops.compiled.thread_team import num_threads, thread_index

NUM_GROUP = 7
MOST_GROUPS = 2
ENTRY_BYTES = 8 + 4  # slot and score of a visible key
_NUM_GIVEN = 12
_NUM_CODES = 256
_MANY = 1 << 40


@compiled(fastmath={"reassoc", "contract", "nsz"})
def _dot(left: np.ndarray, right: np.ndarray) -> np.float32:  # [n] both
    """Summed in several parts, which depend on the length alone."""
    total = np.float32(0.0)
    for place in range(len(left)):
        total += left[place] * right[place]
    return total


@compiled(fastmath={"reassoc", "nsz"})
def _sum(values: np.ndarray) -> np.float32:  # [n]
    """Likewise."""
    total = np.float32(0.0)
    for value in values:
        total += value
    return total


@compiled()
def _soft_cap(score: np.float32, cap: np.float32) -> np.float32:
    """cap * tanh(score / cap)"""
    doubled = exp_of(score * (np.float32(2.0) / cap))
    return cap - np.float32(2.0) * cap / (doubled + np.float32(1.0))


@compiled()
def _read_keys(
    query: np.ndarray,  # [dim]
    pool: np.ndarray,  # [slots, 2 * kv_heads, dim]
    head: int,  # of keys
    visible: np.ndarray,  # [n] slots
    weights: np.ndarray,  # [n] scratch
    factor: np.float32,
    cap: np.float32,  # of scores; 0: none
    out: np.ndarray,  # [dim]
) -> None:
    """The mean of the visible values, weighted by the softmax of the scores of their keys."""
    largest = np.float32(-np.inf)
    for place in range(len(visible)):
        score = _dot(query, pool[visible[place], head]) * factor
        if cap > np.float32(0.0):
            score = _soft_cap(score, cap)
        weights[place] = score
        largest = max(largest, score)
    for place in range(len(visible)):
        weights[place] = exp_of(weights[place] - largest)
    value_head = head + pool.shape[1] // 2
    out[:] = np.float32(0.0)
    for place in range(len(visible)):
        weight, value = weights[place], pool[visible[place], value_head]
        for channel in range(len(out)):
            out[channel] += weight * value[channel]
    inverse = np.float32(1.0) / _sum(weights)
    for channel in range(len(out)):
        out[channel] *= inverse


@compiled()
def _read_codes(
    query: np.ndarray,  # [dim]
    codes: np.ndarray,  # [slots, 2 * kv_heads, dim] uint8
    table: np.ndarray,  # [256] the number that each code stands for; NaN is one of them
    head: int,  # of keys
    visible: np.ndarray,  # [n] slots
    weights: np.ndarray,  # [n] scratch
    factor: np.float32,
    cap: np.float32,
    out: np.ndarray,  # [dim]
) -> None:
    """`_read_keys` from a pool of 8-bit codes."""
    largest = np.float32(-np.inf)
    for place in range(len(visible)):
        key = codes[visible[place], head]
        for channel in range(len(out)):
            out[channel] = table[key[channel]]  # nothing else is in `out` yet
        score = _dot(query, out) * factor
        if cap > np.float32(0.0):
            score = _soft_cap(score, cap)
        weights[place] = score
        largest = max(largest, score)
    for place in range(len(visible)):
        weights[place] = exp_of(weights[place] - largest)
    value_head = head + codes.shape[1] // 2
    out[:] = np.float32(0.0)
    for place in range(len(visible)):
        weight, value = weights[place], codes[visible[place], value_head]
        for channel in range(len(out)):
            out[channel] += weight * table[value[channel]]
    inverse = np.float32(1.0) / _sum(weights)
    for channel in range(len(out)):
        out[channel] *= inverse


@compiled()
def _find_visible(group: np.ndarray, token: int, visible: np.ndarray) -> int:
    """Write the slots that a query token of the group sees, [keys]; returns their number."""
    width, keys, place = group[5], group[6], token
    if group[2]:
        place = carray(pointer_to(group[2]), (group[1],), np.int64)[token]
    slots = carray(pointer_to(group[3]), (_MANY, keys), np.int64)[place // width]
    mask = carray(pointer_to(group[4]), (_MANY, keys), np.float32)[place]
    num = 0
    for key in range(keys):
        visible[num] = slots[key]
        num += mask[key] == np.float32(0.0)
    return num


@compiled()
def attend(
    group: np.ndarray,  # [NUM_GROUP]
    query: tuple[int, int],  # address of float32 [num_query, stride], and the stride
    sizes: tuple[int, int, int],  # query heads, vectors of a slot, channels of a head
    stored: tuple[int, int],  # address of [slots, vectors, dim], and of a table if these are codes
    rule: tuple[np.float32, np.float32, int],  # scale, soft cap or 0, sliding window
    out_at: int,  # address of float32 [num_query, heads, dim]
    scratch_at: int,  # ENTRY_BYTES for every key and thread
) -> None:
    """Each thread computes every n-th pair of query token and head: later tokens see more keys."""
    (heads, vectors, dim), (query_at, stride), (factor, cap, window) = sizes, query, rule
    pool_at, table_at = stored
    first, tokens, keys = group[0], group[1], group[6]
    queries = carray(pointer_to(query_at), (_MANY, stride), np.float32)
    pool = carray(pointer_to(pool_at), (_MANY, vectors, dim), np.float32)
    codes = carray(pointer_to(pool_at), (_MANY, vectors, dim), np.uint8)
    table = carray(pointer_to(table_at), (_NUM_CODES,), np.float32)
    out = carray(pointer_to(out_at), (_MANY, heads, dim), np.float32)
    thread, per_key = thread_index(), heads // (vectors // 2)
    scratch = scratch_at + thread * keys * ENTRY_BYTES
    visible = carray(pointer_to(scratch), (keys,), np.int64)
    weights = carray(pointer_to(scratch + keys * 8), (keys,), np.float32)
    last, num, oldest = -1, 0, 0
    for item in range(thread, tokens * heads, num_threads()):
        token, head = item // heads, item % heads
        if token != last:
            last, num = token, _find_visible(group, token, visible)
            oldest = max(num - window, 0)
        own, key_head = queries[first + token, head * dim : (head + 1) * dim], head // per_key
        seen, scores, read = visible[oldest:num], weights[oldest:num], out[first + token, head]
        if table_at:
            _read_codes(own, codes, table, key_head, seen, scores, factor, cap, read)
        else:
            _read_keys(own, pool, key_head, seen, scores, factor, cap, read)


@callback("void(voidptr)")
def attend_rows(pointer: int) -> None:
    """0 groups, 1 query, 2 its stride, 3 heads, 4 vectors, 5 channels, 6 pool, 7 scale and
    soft cap as float32, 8 sliding window, 9 output, 10 scratch, 11 table of codes or 0; then the
    groups.
    """
    given = carray(pointer, (_NUM_GIVEN + MOST_GROUPS * NUM_GROUP,), np.int64)
    factors = carray(pointer_to(given[7]), (2,), np.float32)
    rule = (factors[0], factors[1], given[8])
    query, sizes = (given[1], given[2]), (given[3], given[4], given[5])
    for number in range(given[0]):
        start = _NUM_GIVEN + number * NUM_GROUP
        group = given[start : start + NUM_GROUP]
        attend(group, query, sizes, (given[6], given[11]), rule, given[9], given[10])
