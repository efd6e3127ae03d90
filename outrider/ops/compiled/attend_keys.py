"""Attention over pages in place: compiled functions that every thread of a team runs.

A query token and head reads its visible keys in the order of their slots, which is the order of
their positions, also along the path of a tree. Nothing else enters its sums. So their bits do not
depend on other queries, on masked keys, or on what unused slots hold.

A group of query tokens is `NUM_GROUP` integers:

    0 first query token, 1 how many, 2 places, 3 slots, 4 mask, 5 width, 6 keys, 7 rows * width
"""

import llvmlite.binding as llvm
import numpy as np
from numba import carray, types

from outrider.ops.compiled.address import pointer_to
from outrider.ops.compiled.exponential import exp_of
from outrider.ops.compiled.kernel_cache import callback, compiled
from outrider.ops.compiled.key_tile import most_queries, score_keys, sum_values
from outrider.ops.compiled.openmp import num_threads, thread_index
from outrider.ops.compiled.team_barrier import wait_after_unequal_work

NUM_GROUP = 8
MOST_GROUPS = 2
_MOST_HEADS = 4  # that are computed at once
_NUM_GIVEN = 13
_NUM_CODES = 256
_MANY = 1 << 40
_ATTEND = types.void(*[types.intp] * 13)


@compiled("int64(int64)")
def key_scratch(keys: int) -> int:
    """Bytes of a thread: the slots of visible keys, and their scores for some heads."""
    return keys * 8 + _MOST_HEADS * (keys + 1) * 4


@compiled(fastmath={"reassoc", "contract", "nsz"})
def _dot(left: np.ndarray, right: np.ndarray) -> np.float32:  # [n] both
    """Summed in several parts, which depend on the length alone."""
    total = np.float32(0.0)
    for place in range(len(left)):
        total += left[place] * right[place]
    return total


@compiled(fastmath={"reassoc", "nsz"})
def _sum(values: np.ndarray) -> np.float32:  # [n]
    """Likewise; the loop goes by index because the loads of an iterator become gathers."""
    total = np.float32(0.0)
    for place in range(len(values)):
        total += values[place]
    return total


@compiled()
def _soft_cap(score: np.float32, cap: np.float32) -> np.float32:
    """cap * tanh(score / cap)"""
    doubled = exp_of(score * (np.float32(2.0) / cap))
    return cap - np.float32(2.0) * cap / (doubled + np.float32(1.0))


@compiled()
def _score_one_by_one(
    query: np.ndarray,  # [n, dim]
    pool: np.ndarray,  # [slots, 2 * kv_heads, dim]
    head: int,  # of keys
    visible: np.ndarray,  # [num] slots
    scores: np.ndarray,  # [n, num + 1 or more] written; the largest is in the place after the last
) -> None:
    for row in range(len(query)):
        largest = np.float32(-np.inf)
        for place in range(len(visible)):
            score = _dot(query[row], pool[visible[place], head])
            scores[row, place] = score
            largest = max(largest, score)
        scores[row, len(visible)] = largest


@compiled()
def _sum_one_by_one(
    out: np.ndarray,  # [n, dim]
    pool: np.ndarray,  # [slots, 2 * kv_heads, dim]
    head: int,  # of values
    visible: np.ndarray,  # [num] slots
    weights: np.ndarray,  # [n, num or more]
) -> None:
    for row in range(len(out)):
        out[row] = np.float32(0.0)
        for place in range(len(visible)):
            weight, value = weights[row, place], pool[visible[place], head]
            for channel in range(out.shape[1]):
                out[row, channel] += weight * value[channel]


@compiled()
def _sink_of(sinks_at: int, row: int) -> np.float32:
    """The sink of a query head; minus infinity where the layer has none."""
    if not sinks_at:
        return np.float32(-np.inf)
    sink: np.float32 = carray(pointer_to(sinks_at), (_MANY,), np.float32)[row]
    return sink


@compiled()
def _sink_weight(sink: np.float32, largest: np.float32) -> np.float32:
    """The weight of a sink beside keys whose largest score has weight 1."""
    return exp_of(sink - largest) if sink > np.float32(-np.inf) else np.float32(0.0)


@compiled()
def _weigh(
    scores: np.ndarray,  # [num + 1]
    factor: np.float32,
    cap: np.float32,
    sink: np.float32,
) -> np.float32:
    """Replace scores by their weights, not divided by their sum; returns the inverse of the sum.

    The largest score is the last element. It has no weight.
    """
    num = len(scores) - 1
    for place in range(num + 1):
        scores[place] *= factor
    if cap > np.float32(0.0):
        for place in range(num + 1):
            scores[place] = _soft_cap(scores[place], cap)
    largest = scores[num]
    for place in range(num):
        scores[place] = exp_of(scores[place] - largest)
    return np.float32(1.0) / (_sum(scores[:num]) + _sink_weight(sink, largest))


@compiled()
def _read_keys(
    query: np.ndarray,  # [n, dim]
    pool: np.ndarray,  # [slots, 2 * kv_heads, dim]
    head: int,  # of keys
    visible: np.ndarray,  # [num] slots
    scores: np.ndarray,  # [4, num + 1 or more] scratch
    rule: tuple[np.float32, np.float32, int],  # scale, soft cap or 0, address of sinks or 0
    out: np.ndarray,  # [n, dim]
) -> None:
    """The means of the visible values, weighted by the softmax of the scores of their keys."""
    (n, dim), num, stride = query.shape, len(visible), scores.shape[1]
    vectors, scores_at, slots_at = pool.shape[1], scores.ctypes.data, visible.ctypes.data
    slot_bytes, value_head = vectors * dim * 4, head + vectors // 2
    key_at, value_at = pool.ctypes.data + head * dim * 4, pool.ctypes.data + value_head * dim * 4
    is_known = num > 0 and n <= most_queries(dim)
    if is_known:
        query_at = query.ctypes.data
        score_keys(dim, n, query_at, key_at, slot_bytes, slots_at, num, scores_at, stride)
    else:
        _score_one_by_one(query, pool, head, visible, scores)
    for row in range(n):
        sink = _sink_of(rule[2], row)
        scores[row, num] = _weigh(scores[row, : num + 1], rule[0], rule[1], sink)
    if is_known:
        out_at = out.ctypes.data
        sum_values(dim, n, out_at, value_at, slot_bytes, slots_at, num, scores_at, stride)
    else:
        _sum_one_by_one(out, pool, value_head, visible, scores)
    for row in range(n):
        for channel in range(dim):
            out[row, channel] *= scores[row, num]


@compiled()
def _read_codes(
    query: np.ndarray,  # [dim]
    codes: np.ndarray,  # [slots, 2 * kv_heads, dim] uint8
    table: np.ndarray,  # [256] the number that each code stands for; NaN is one of them
    head: int,  # of keys
    visible: np.ndarray,  # [n] slots
    weights: np.ndarray,  # [n] scratch
    rule: tuple[np.float32, np.float32, np.float32],  # scale, soft cap or 0, sink
    out: np.ndarray,  # [dim]
) -> None:
    """`_read_keys` from a pool of 8-bit codes."""
    factor, cap, sink = rule
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
    inverse = np.float32(1.0) / (_sum(weights) + _sink_weight(sink, largest))
    for channel in range(len(out)):
        out[channel] *= inverse


@compiled()
def _read(
    query: np.ndarray,  # [n, dim]
    stored: tuple[int, int],  # address of [slots, vectors, dim], and of a table if these are codes
    place: tuple[int, int],  # vectors of a slot, key head
    visible: np.ndarray,  # [num] slots
    scores: np.ndarray,  # [4, num + 1 or more] scratch
    rule: tuple[np.float32, np.float32, int],  # as of `_read_keys`
    out: np.ndarray,  # [n, dim]
) -> None:
    (vectors, head), (factor, cap, sinks_at), dim = place, rule, query.shape[1]
    if stored[1]:
        codes = carray(pointer_to(stored[0]), (_MANY, vectors, dim), np.uint8)
        table = carray(pointer_to(stored[1]), (_NUM_CODES,), np.float32)
        for row in range(len(query)):
            weights, own = scores[row, : len(visible)], (factor, cap, _sink_of(sinks_at, row))
            _read_codes(query[row], codes, table, head, visible, weights, own, out[row])
    else:
        pool = carray(pointer_to(stored[0]), (_MANY, vectors, dim), np.float32)
        _read_keys(query, pool, head, visible, scores, rule, out)


@compiled()
def _find_visible(group: np.ndarray, token: int, visible: np.ndarray) -> int:
    """Write the slots that a query token of the group sees, [keys]; returns their number."""
    width, keys, place = group[5], group[6], token
    if group[2]:
        place = carray(pointer_to(group[2]), (group[1],), np.int64)[token]
    if place < 0 or place >= group[7]:  # a wrong plan ends its requests, not the process
        return 0
    slots = carray(pointer_to(group[3]), (_MANY, keys), np.int64)[place // width]
    mask = carray(pointer_to(group[4]), (_MANY, keys), np.float32)[place]
    num = 0
    for key in range(keys):
        visible[num] = slots[key]
        num += mask[key] == np.float32(0.0)
    return num


@callback(_ATTEND)
def _attend(
    group_at: int,  # address of int64 [NUM_GROUP]
    query: int,  # address of float32 [num_query, stride]
    stride: int,
    heads: int,  # of queries
    vectors: int,  # of a slot
    dim: int,  # channels of a head
    pool_at: int,  # address of [slots, vectors, dim]
    table_at: int,  # address of a table if the pool has codes, else 0
    factors_at: int,  # address of float32 [2]: scale, soft cap or 0
    sinks_at: int,  # address of float32 [heads], or 0
    window: int,  # negative: an attention chunk
    out_at: int,  # address of float32 [num_query, heads, dim]
    scratch_at: int,  # `key_scratch` for every thread
) -> None:
    """A thread reads one key head of some query tokens, then the next key head of others.

    So the keys of a row stay in its cache, and threads have tokens that see many and few keys.
    """
    group = carray(pointer_to(group_at), (NUM_GROUP,), np.int64)
    factors = carray(pointer_to(factors_at), (2,), np.float32)
    keys, threads = group[6], num_threads()
    kv_heads, most = vectors // 2, max(most_queries(dim), 1)
    per_key, scratch = heads // kv_heads, scratch_at + thread_index() * key_scratch(keys)
    visible = carray(pointer_to(scratch), (keys,), np.int64)
    scores = carray(pointer_to(scratch + keys * 8), (_MOST_HEADS, keys + 1), np.float32)
    for kv_head in range(kv_heads):
        for token in range((thread_index() + kv_head) % threads, group[1], threads):
            num, row = _find_visible(group, token, visible), group[0] + token
            oldest = num - window if window > 0 else (num - 1) // -window * -window
            seen = visible[max(oldest, 0) : num]
            for first in range(kv_head * per_key, (kv_head + 1) * per_key, most):
                n = min(most, (kv_head + 1) * per_key - first)
                query_at = query + (row * stride + first * dim) * 4
                target_at = out_at + (row * heads + first) * dim * 4
                rule = factors[0], factors[1], sinks_at + first * 4 if sinks_at else 0
                own = carray(pointer_to(query_at), (n, dim), np.float32)
                target = carray(pointer_to(target_at), (n, dim), np.float32)
                _read(own, (pool_at, table_at), (vectors, kv_head), seen, scores, rule, target)


# Callers get a symbol: numba would compile the function again inside of each of them.
llvm.add_symbol("outrider_attend", _attend.address)
attend = types.ExternalFunction("outrider_attend", _ATTEND)


@callback("void(voidptr)")
def attend_rows(pointer: int) -> None:
    """0 groups, 1 query, 2 its stride, 3 heads, 4 vectors, 5 channels, 6 pool, 7 scale and
    soft cap as float32, 8 signed window, 9 output, 10 scratch, 11 table of codes or 0, 12 sinks
    or 0; then the groups.
    """
    given = carray(pointer, (_NUM_GIVEN + MOST_GROUPS * NUM_GROUP,), np.int64)
    query, stride, heads, vectors, dim, pool, factors, window, out, scratch = given[1:11]
    table, sinks = given[11:_NUM_GIVEN]
    for number in range(given[0]):
        group = given[_NUM_GIVEN + number * NUM_GROUP :].ctypes.data
        attend(
            group, query, stride, heads, vectors, dim, pool, table, factors, sinks, window, out,
            scratch,
        )  # fmt: skip
    wait_after_unequal_work()
