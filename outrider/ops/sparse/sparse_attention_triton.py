"""Attention over a sliding window and compressed entries, as `sparse_attention.py` defines it.

Keys are taken in blocks and splits by their place in window and list, and splits are merged in
order. So the bits of a query token depend on its keys only. Tokens of chains have a program per
split, and a second launch merges. Tokens of chunks are many: one program runs all splits.
"""
# Triton reads kernels as source; it has no types for them.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from outrider.ops import dependent_launch as overlap
from outrider.ops.attention.softmax_blocks_triton import LOG2_E, sum_places
from outrider.ops.attention.splits_triton import (
    EXACT,
    NOTHING_SEEN,
    begin_softmax,
    merge_softmax,
)
from outrider.ops.sparse.compressed_index import CompressedIndex
from outrider.ops.sparse.listed_entries import ListedEntries
from outrider.ops.sparse.ring_tokens import RingTokens

SPLIT = 64  # keys of a split
MOST_PARTIALS = 1 << 26  # floats of the workspace: more query tokens run in groups
_HEADS = 32  # of a tile at most


@dataclass(frozen=True, slots=True, kw_only=True)
class _Keys:
    """The vectors that the query tokens read."""

    window: RingTokens
    sources: torch.Tensor  # [num_query, window] int64
    entries: ListedEntries


@triton.jit
def _accumulate(best, total, mean, query, vectors, is_seen, scale):
    """The running softmax, in base 2, after a block of vectors."""
    score = tl.dot(query, tl.trans(vectors), input_precision="ieee") * scale
    score = tl.where(is_seen[None, :], score, float("-inf"))
    new_best = tl.maximum(best, tl.max(score, 1))
    share = tl.exp2(score - new_best[:, None])
    rescale = tl.exp2(best - new_best)
    total = total * rescale + sum_places(share, True)
    mean = tl.dot(share.to(vectors.dtype), vectors, mean * rescale[:, None], input_precision="ieee")
    return new_best, total, mean


@triton.jit
def _accumulate_window(
    best, total, mean, query, ring, fresh, sources, token, num_slots, ring_stride, fresh_stride,
    begin, end, scale,
    WINDOW: tl.constexpr, WIDTH: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The tokens at places [begin, end) of the window."""
    channel = tl.arange(0, DIM)
    is_channel = (channel < WIDTH)[None, :]
    for start in range(begin, end, BLOCK):
        place = start + tl.arange(0, BLOCK)
        source = tl.load(sources + token * WINDOW + place, mask=place < end, other=-1)
        is_old = (source >= 0) & (source < num_slots)
        is_fresh = source >= num_slots
        old = ring + source[:, None] * ring_stride + channel[None, :]
        new = fresh + (source - num_slots)[:, None] * fresh_stride + channel[None, :]
        vectors = tl.load(old, mask=is_old[:, None] & is_channel, other=0.0)
        vectors += tl.load(new, mask=is_fresh[:, None] & is_channel, other=0.0)
        best, total, mean = _accumulate(best, total, mean, query, vectors, source >= 0, scale)
    return best, total, mean


@triton.jit
def _accumulate_entries(
    best, total, mean, query, pool, pages, begin, end, scale,
    PER_PAGE: tl.constexpr, WIDTH: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The entries [begin, end) of the list."""
    channel = tl.arange(0, DIM)
    is_channel = (channel < WIDTH)[None, :]
    for start in range(begin, end, BLOCK):
        entry = start + tl.arange(0, BLOCK)
        is_seen = entry < end
        page = tl.load(pages + entry // PER_PAGE, mask=is_seen, other=0)
        slot = page * PER_PAGE + entry % PER_PAGE
        at = pool + slot[:, None] * WIDTH + channel[None, :]
        vectors = tl.load(at, mask=is_seen[:, None] & is_channel, other=0.0)
        best, total, mean = _accumulate(best, total, mean, query, vectors, is_seen, scale)
    return best, total, mean


@triton.jit
def _read_split(
    query, ring, fresh, sources, pool, pages, token, count, num_slots, ring_stride, fresh_stride,
    split, scale,
    HEADS: tl.constexpr, WINDOW: tl.constexpr, WIDTH: tl.constexpr, PER_PAGE: tl.constexpr,
    DIM: tl.constexpr, BLOCK: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """The softmax over one split: splits of the window come first, then splits of the list."""
    best = tl.full((HEADS,), NOTHING_SEEN, tl.float32)
    total = tl.zeros((HEADS,), tl.float32)
    mean = tl.zeros((HEADS, DIM), tl.float32)
    begin = split * SPLIT
    if begin < WINDOW:
        best, total, mean = _accumulate_window(
            best, total, mean, query, ring, fresh, sources, token, num_slots, ring_stride,
            fresh_stride, begin, tl.minimum(begin + SPLIT, WINDOW), scale,
            WINDOW, WIDTH, DIM, BLOCK,
        )  # fmt: skip
    else:
        begin -= (WINDOW + SPLIT - 1) // SPLIT * SPLIT
        best, total, mean = _accumulate_entries(
            best, total, mean, query, pool, pages, begin, tl.minimum(begin + SPLIT, count),
            scale, PER_PAGE, WIDTH, DIM, BLOCK,
        )  # fmt: skip
    return best, total, mean


@triton.jit
def _begin_with(sinks, head, is_head, HEADS: tl.constexpr, DIM: tl.constexpr):
    """The softmax over the sinks of these heads, which have no values."""
    best, total = begin_softmax(sinks, head, is_head, HEADS, True)
    return best, total, tl.zeros((HEADS, DIM), tl.float32)


@triton.jit(do_not_specialize=["first", "num_slots", "columns", "longest", "num_splits"])
def _attend_kernel(
    query, ring, fresh, sources, pool, table, lists, counts, sinks, out,
    part_best, part_total, part_mean,
    first, num_slots, columns, longest, num_splits, query_stride, ring_stride, fresh_stride, scale,
    NUM_HEADS: tl.constexpr, WINDOW: tl.constexpr, WIDTH: tl.constexpr, PER_PAGE: tl.constexpr,
    HEADS: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr, SPLIT: tl.constexpr,
    IS_SPLIT: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    token = (first + tl.program_id(0)).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    channel = tl.arange(0, DIM)
    is_head = head < NUM_HEADS
    inside = is_head[:, None] & (channel < WIDTH)[None, :]
    overlap.begin(PDL)
    count = tl.minimum(tl.load(counts + token).to(tl.int32), longest)
    pages = table + tl.load(lists + token) * columns
    at = token * query_stride + head[:, None] * WIDTH + channel[None, :]
    query_tile = tl.load(query + at, mask=inside, other=0.0)
    if IS_SPLIT:
        split = tl.program_id(2)
        best, total, mean = _read_split(
            query_tile, ring, fresh, sources, pool, pages, token, count, num_slots, ring_stride,
            fresh_stride, split, scale, HEADS, WINDOW, WIDTH, PER_PAGE, DIM, BLOCK, SPLIT,
        )  # fmt: skip
        part = (tl.program_id(0).to(tl.int64) * num_splits + split) * NUM_HEADS + head
        tl.store(part_best + part, best, mask=is_head)
        tl.store(part_total + part, total, mask=is_head)
        tl.store(part_mean + part[:, None] * WIDTH + channel[None, :], mean, mask=inside)
    else:
        best, total, mean = _begin_with(sinks, head, is_head, HEADS, DIM)
        num_own = (WINDOW + SPLIT - 1) // SPLIT + (count + SPLIT - 1) // SPLIT
        for split in range(0, num_own):
            own_best, own_total, own_mean = _read_split(
                query_tile, ring, fresh, sources, pool, pages, token, count, num_slots,
                ring_stride, fresh_stride, split, scale,
                HEADS, WINDOW, WIDTH, PER_PAGE, DIM, BLOCK, SPLIT,
            )  # fmt: skip
            best, total, mean = merge_softmax(best, total, mean, own_best, own_total, own_mean)
        to = out + (token * NUM_HEADS + head)[:, None] * WIDTH + channel[None, :]
        tl.store(to, (mean / total[:, None]).to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["first", "num_splits"])
def _merge_kernel(
    part_best, part_total, part_mean, sinks, out, first, num_splits,
    NUM_HEADS: tl.constexpr, WIDTH: tl.constexpr, DIM: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    channel = tl.arange(0, DIM)
    inside = channel < WIDTH
    overlap.begin(PDL)
    one = tl.arange(0, 1)
    best, total, mean = _begin_with(sinks, head + one, one == 0, 1, DIM)
    for split in range(0, num_splits):
        part = (token * num_splits + split) * NUM_HEADS + head + one
        at = part_mean + part[:, None] * WIDTH + channel[None, :]
        own_mean = tl.load(at, mask=inside[None, :], other=0.0)
        best, total, mean = merge_softmax(
            best, total, mean, tl.load(part_best + part), tl.load(part_total + part), own_mean
        )
    to = out + ((first + token) * NUM_HEADS + head) * WIDTH + channel[None, :]
    tl.store(to, (mean / total[:, None]).to(out.dtype.element_ty), mask=inside[None, :])


def sparse_attention_triton(
    query: torch.Tensor,  # contiguous
    window: RingTokens,
    index: CompressedIndex,
    entries: ListedEntries,
    sinks: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """`sparse_attention` by kernels, with the keys of chains split over programs."""
    assert query.is_contiguous()
    assert window.ring.stride(1) == window.fresh.stride(1) == 1
    assert entries.pool.is_contiguous()
    assert entries.table.stride(1) == 1 or not entries.table.shape[1]
    keys = _Keys(window=window, sources=index.window.ring.sources, entries=entries)
    num_split, (num_query, heads, width) = index.num_decode_query, query.shape
    out = torch.empty_like(query)
    splits = triton.cdiv(keys.sources.shape[1], SPLIT) + triton.cdiv(entries.longest, SPLIT)
    group = max(1, MOST_PARTIALS // (splits * heads * (width + 2)))
    for first in range(0, num_split, group):
        num = min(group, num_split - first)
        parts = _new_parts(query, num * splits * heads)
        _launch(query, keys, sinks, out, parts, (first, num, splits), scale)
        kernel: Any = _merge_kernel[(num, heads)]
        kernel(
            *parts,
            sinks,
            out,
            first,
            splits,
            NUM_HEADS=heads,
            WIDTH=width,
            DIM=triton.next_power_of_2(width),
            PDL=overlap.is_on(query),
            num_warps=2,
            **EXACT,
            **overlap.options(query),
        )
    if num_split < num_query:
        unused = (sinks, sinks, sinks)
        rest = (num_split, num_query - num_split, 0)
        _launch(query, keys, sinks, out, unused, rest, scale)
    return out


def _new_parts(query: torch.Tensor, num: int) -> tuple[torch.Tensor, ...]:
    """Best score, sum of shares and mean of each split, head and query token."""
    best, total = torch.empty((2, num), dtype=torch.float32, device=query.device)
    return best, total, torch.empty((num, query.shape[2]), dtype=torch.float32, device=query.device)


def _launch(
    query: torch.Tensor,
    keys: _Keys,
    sinks: torch.Tensor,
    out: torch.Tensor,
    parts: tuple[torch.Tensor, ...],  # as `_new_parts` makes them
    group: tuple[int, int, int],  # first query token, how many, splits of each or 0
    scale: float,
) -> None:
    first, num, splits = group
    _, heads, width = query.shape
    ring, fresh, entries = keys.window.ring, keys.window.fresh, keys.entries
    tile = _tile(query, is_split=splits > 0)
    kernel: Any = _attend_kernel[(num, triton.cdiv(heads, tile["HEADS"]), max(splits, 1))]
    kernel(
        query,
        ring,
        fresh,
        keys.sources,
        entries.pool,
        entries.table,
        entries.lists,
        entries.counts,
        sinks,
        out,
        *parts,
        first,
        ring.shape[0],
        entries.table.stride(0),
        entries.longest,
        splits,
        query.stride(0),
        ring.stride(0),
        fresh.stride(0),
        scale * LOG2_E,
        NUM_HEADS=heads,
        WINDOW=keys.sources.shape[1],
        WIDTH=width,
        PER_PAGE=entries.per_page,
        SPLIT=SPLIT,
        IS_SPLIT=splits > 0,
        PDL=overlap.is_on(query),
        **tile,
        **EXACT,
        **overlap.options(query),
    )


def _tile(query: torch.Tensor, *, is_split: bool) -> dict[str, int]:
    """Heads and keys of a tile; float32 has no tensor cores and holds its operands in registers."""
    heads, width = query.shape[1:]
    dim = max(16, int(triton.next_power_of_2(width)))
    most = max(16, int(triton.next_power_of_2(heads)))
    if query.dtype == torch.float32:
        return {"HEADS": 16, "DIM": dim, "BLOCK": 16, "num_warps": 8, "num_stages": 1}
    return {
        "HEADS": min(most, _HEADS),
        "DIM": dim,
        "BLOCK": 32,
        "num_warps": 4 if is_split else 8,  # a chunk's program holds two results
        "num_stages": 2,
    }
