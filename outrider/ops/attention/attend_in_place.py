"""Attention over pages in place: a compiled function that every thread of a team runs.

A query token and head reads its visible keys in the order of their slots, which is the order of
their positions, also along the path of a tree. Nothing else enters its sums. So their bits do not
depend on other queries, on masked keys, or on what unused slots hold.
"""

import numpy as np
import torch
from numba import carray

from outrider.ops.attention.attention_rule import AttentionRule
from outrider.ops.attention.ordered_attention import SeenKeys
from outrider.ops.compiled.address import pointer_to
from outrider.ops.compiled.exponential import exp_of
from outrider.ops.compiled.kernel_cache import callback, compiled
from outrider.ops.compiled.thread_team import num_threads, run_team, thread_index
from outrider.ops.graph_break import graph_break

_ENTRY_BYTES = 8 + 4  # slot and score of a visible key


def attend_in_place(
    query: torch.Tensor,  # [rows * width, heads, head_dim] float32
    seen: SeenKeys,
    *,
    layer: torch.Tensor,  # [pages, page_size, 2 * kv_heads, head_dim] float32
    rule: AttentionRule,
) -> torch.Tensor:  # [rows * width, heads, head_dim]
    """Attention of every query token over the keys that it sees."""
    out = torch.empty(query.shape, dtype=query.dtype)
    factors = torch.tensor([rule.scale, rule.soft_cap], dtype=torch.float32)
    graph_break(_attend, query, seen.slots, seen.mask, layer, rule.window, factors, out)
    return out


def _attend(
    query: torch.Tensor,
    slots: torch.Tensor,  # [rows, keys] int64
    mask: torch.Tensor,  # [rows, width, keys] float32: 0 where a key is visible
    layer: torch.Tensor,
    window: int,
    factors: torch.Tensor,  # [2] float32 scale, soft cap
    out: torch.Tensor,
) -> None:
    rows, width, keys = mask.shape
    scratch = torch.empty(torch.get_num_threads() * keys * _ENTRY_BYTES, dtype=torch.uint8)
    assert query.stride(2) == 1
    assert query.stride(1) == query.shape[2]
    run_team(
        attend_rows.address,
        (
            query.data_ptr(),
            query.stride(0),
            query.shape[1],
            query.shape[2],
            layer.data_ptr(),
            layer.shape[2],
            slots.data_ptr(),
            mask.data_ptr(),
            rows,
            width,
            keys,
            factors.data_ptr(),
            out.data_ptr(),
            scratch.data_ptr(),
            window,
        ),
    )


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
def _soft_cap(score: np.float32, cap: float) -> np.float32:
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
    factor: float,
    cap: float,
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


@callback("void(voidptr)")
def attend_rows(pointer: int) -> None:
    """Each thread computes every n-th pair of query token and head: later tokens see more keys."""
    given = carray(pointer, (15,), np.int64)
    stride, heads, dim, vectors = given[1], given[2], given[3], given[5]
    rows, width, keys = given[8], given[9], given[10]
    slots = carray(pointer_to(given[6]), (rows, keys), np.int64)
    mask = carray(pointer_to(given[7]), (rows, width, keys), np.float32)
    factors = carray(pointer_to(given[11]), (2,), np.float32)
    out = carray(pointer_to(given[12]), (rows * width, heads, dim), np.float32)
    queries = carray(pointer_to(given[0]), (rows * width * stride,), np.float32)
    pool = carray(pointer_to(given[4]), (1 << 40, vectors, dim), np.float32)
    thread, group = thread_index(), heads // (vectors // 2)
    scratch = given[13] + thread * keys * 12
    visible = carray(pointer_to(scratch), (keys,), np.int64)
    weights = carray(pointer_to(scratch + keys * 8), (keys,), np.float32)
    for item in range(thread, rows * width * heads, num_threads()):
        token, head = item // heads, item % heads
        row, place, num = token // width, token % width, 0
        for key in range(keys):
            visible[num] = slots[row, key]
            num += mask[row, place, key] == np.float32(0.0)
        first, oldest = token * stride + head * dim, max(num - given[14], 0)
        _read_keys(
            queries[first : first + dim],
            pool,
            head // group,
            visible[oldest:num],
            weights[oldest:num],
            factors[0],
            factors[1],
            out[token, head],
        )
