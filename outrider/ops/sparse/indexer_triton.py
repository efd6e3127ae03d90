"""Selects the compressed entries that score best, as `indexer.py` defines it, in two launches.

Scores are float32. The best are found digit by digit of their sort order, so the result is exact;
of equal scores the older entry wins. Tables, lists and counts are int64.
"""
# Triton reads kernels as source; it has no types for them.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from typing import Any

import torch
import triton
import triton.language as tl

from outrider.ops import dependent_launch as overlap
from outrider.ops.sampling.sortable_floats_triton import order_of
from outrider.ops.sparse.listed_entries import ListedEntries

MOST_SCORES = 1 << 26  # of the workspace: more query tokens run in groups
_ENTRIES = 64  # scored by a program
_TILE = 2048  # scores read at once
_LEAST_TILE = 256  # as many as there are threads: each counts at least one
_BINS = tl.constexpr(256)


@triton.jit(do_not_specialize=["first", "columns", "longest"])
def _score_kernel(
    query,  # [num_query, HEADS, WIDTH]
    weights,  # [num_query, HEADS]
    keys,  # [entries, WIDTH]
    table,  # [lists, columns]
    lists,
    counts,
    scores,  # [group, longest]
    first,  # query token of the group
    query_stride,
    weight_stride,
    columns,
    longest,
    scale,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    PER_PAGE: tl.constexpr,
    HEAD_BLOCK: tl.constexpr,
    DIM: tl.constexpr,
    ENTRIES: tl.constexpr,
    PDL: tl.constexpr,
):
    token = (first + tl.program_id(0)).to(tl.int64)
    start = tl.program_id(1) * ENTRIES
    overlap.begin(PDL)
    count = tl.minimum(tl.load(counts + token).to(tl.int32), longest)
    if start >= count:
        return
    entry = start + tl.arange(0, ENTRIES)
    is_seen = entry < count
    row = tl.load(lists + token)
    page = tl.load(table + row * columns + entry // PER_PAGE, mask=is_seen, other=0)
    slot = page * PER_PAGE + entry % PER_PAGE
    channel = tl.arange(0, DIM)
    head = tl.arange(0, HEAD_BLOCK)
    key = tl.load(
        keys + slot[:, None] * WIDTH + channel[None, :],
        mask=is_seen[:, None] & (channel < WIDTH)[None, :],
        other=0.0,
    )
    query_tile = tl.load(
        query + token * query_stride + head[:, None] * WIDTH + channel[None, :],
        mask=(head < HEADS)[:, None] & (channel < WIDTH)[None, :],
        other=0.0,
    )
    weight = tl.load(weights + token * weight_stride + head, mask=head < HEADS, other=0.0)
    match = tl.maximum(tl.dot(query_tile, tl.trans(key), input_precision="ieee"), 0.0)
    score = tl.sum(match * (weight.to(tl.float32) * scale)[:, None], 0)
    at = scores + tl.program_id(0).to(tl.int64) * longest + entry
    tl.store(at, score, mask=is_seen)


@triton.jit
def _digit_of_kth(scores, count, prefix, wanted, SHIFT: tl.constexpr, TILE: tl.constexpr):
    """The next digit of the `wanted`-th largest score among those that begin with the prefix, and
    how many of these are above every score with that digit.
    """
    histogram = tl.zeros((_BINS,), tl.int32)
    for start in range(0, count, TILE):
        place = start + tl.arange(0, TILE)
        inside = place < count
        order = order_of(tl.load(scores + place, mask=inside, other=0.0))
        if SHIFT == 24:
            digit = (order >> 24) + 128
        else:
            digit = (order >> SHIFT) & 255
            inside = inside & ((order >> (SHIFT + 8)) == prefix)
        histogram += tl.histogram(digit, _BINS, mask=inside)
    bins = tl.arange(0, _BINS)
    above = tl.sum(histogram, 0) - tl.cumsum(histogram, 0)  # with a larger digit
    is_digit = (above < wanted) & (above + histogram >= wanted)
    return tl.sum(tl.where(is_digit, bins, 0), 0), tl.sum(tl.where(is_digit, above, 0), 0)


@triton.jit(do_not_specialize=["first", "columns", "longest"])
def _select_kernel(
    scores,  # [group, longest]
    table,  # [lists, columns]
    lists,
    counts,
    slots,  # [num_query, TOP_K]
    first,
    columns,
    longest,
    PER_PAGE: tl.constexpr,
    TOP_K: tl.constexpr,
    TILE: tl.constexpr,
    PDL: tl.constexpr,
):
    token = (first + tl.program_id(0)).to(tl.int64)
    overlap.begin(PDL)
    count = tl.minimum(tl.load(counts + token).to(tl.int32), longest)
    pages = table + tl.load(lists + token) * columns
    out = slots + token * TOP_K
    own = scores + tl.program_id(0).to(tl.int64) * longest
    least = -0x80000000  # in the order of scores: where all are selected, all are above it
    ties = 0
    if count > TOP_K:
        digit, above = _digit_of_kth(own, count, 0, TOP_K, 24, TILE)
        prefix = digit - 128
        wanted = TOP_K - above
        digit, above = _digit_of_kth(own, count, prefix, wanted, 16, TILE)
        prefix = (prefix << 8) | digit
        wanted -= above
        digit, above = _digit_of_kth(own, count, prefix, wanted, 8, TILE)
        prefix = (prefix << 8) | digit
        wanted -= above
        digit, above = _digit_of_kth(own, count, prefix, wanted, 0, TILE)
        least = (prefix << 8) | digit
        ties = wanted - above  # of those that equal the least, so many are selected
    selected = 0
    equal = 0
    for start in range(0, tl.maximum(count, TOP_K), TILE):
        place = start + tl.arange(0, TILE)
        inside = place < count
        order = order_of(tl.load(own + place, mask=inside, other=0.0))
        is_equal = inside & (order == least)
        rank = equal + tl.cumsum(is_equal.to(tl.int32), 0)
        is_selected = (inside & (order > least)) | (is_equal & (rank <= ties))
        at = selected + tl.cumsum(is_selected.to(tl.int32), 0) - 1
        page = tl.load(pages + place // PER_PAGE, mask=is_selected, other=0)
        tl.store(out + at, page * PER_PAGE + place % PER_PAGE, mask=is_selected)
        selected += tl.sum(is_selected.to(tl.int32), 0)
        equal += tl.sum(is_equal.to(tl.int32), 0)
        # Slots past the last selected entry are not used, but must lie in the pool.
        tl.store(out + place, tl.zeros((TILE,), tl.int64), mask=(place >= count) & (place < TOP_K))


def select_entries_triton(
    query: torch.Tensor,  # contiguous heads
    weights: torch.Tensor,
    keys: ListedEntries,
    scale: float,
    top_k: int,
) -> torch.Tensor:
    """`select_entries` in two launches: older entries first, and slot 0 past the count."""
    table = keys.table
    assert query.stride(2) == weights.stride(1) == 1
    assert query.stride(1) == query.shape[2]
    assert table.is_contiguous()
    assert keys.pool.is_contiguous()
    num_query, longest = query.shape[0], keys.longest
    top_k = min(top_k, longest)
    slots = torch.empty((num_query, top_k), dtype=torch.int64, device=query.device)
    group = max(1, min(num_query, MOST_SCORES // longest))
    scores = torch.empty((group, longest), dtype=torch.float32, device=query.device)
    for first in range(0, num_query, group):
        num = min(group, num_query - first)
        _score(query, weights, keys, scores, first=first, num=num, scale=scale)
        kernel: Any = _select_kernel[(num,)]
        kernel(
            scores,
            table,
            keys.lists,
            keys.counts,
            slots,
            first,
            table.shape[1],
            longest,
            PER_PAGE=keys.per_page,
            TOP_K=top_k,
            TILE=min(_TILE, max(_LEAST_TILE, triton.next_power_of_2(longest))),
            PDL=overlap.is_on(query),
            num_warps=8,
            **overlap.options(query),
        )
    return slots


def _score(
    query: torch.Tensor,
    weights: torch.Tensor,
    keys: ListedEntries,
    scores: torch.Tensor,  # [group, longest] written
    *,
    first: int,  # query token
    num: int,  # query tokens
    scale: float,
) -> None:
    """Write the scores of some query tokens with the entries that each may read."""
    heads, width = query.shape[1:]
    kernel: Any = _score_kernel[(num, triton.cdiv(scores.shape[1], _ENTRIES))]
    kernel(
        query,
        weights,
        keys.pool,
        keys.table,
        keys.lists,
        keys.counts,
        scores,
        first,
        query.stride(0),
        weights.stride(0),
        keys.table.shape[1],
        scores.shape[1],
        scale,
        HEADS=heads,
        WIDTH=width,
        PER_PAGE=keys.per_page,
        HEAD_BLOCK=max(16, triton.next_power_of_2(heads)),
        DIM=max(16, triton.next_power_of_2(width)),
        ENTRIES=_ENTRIES,
        PDL=overlap.is_on(query),
        num_warps=4,
        **overlap.options(query),
    )
