"""Causal attention of prompt chunks over paged history, in Triton.

Blocks, splits and their merging are those of `decode_triton.py`, so a token has the same bits in
any chunk and as a decode row.
"""
# Triton reads kernels as source; it has no types for them.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from outrider.ops import dependent_launch as overlap
from outrider.ops.attention.attention_rule import AttentionRule
from outrider.ops.attention.kv_codes_triton import pool_argument
from outrider.ops.attention.softmax_blocks_triton import (
    add_block,
    block_keys,
    capped,
    finished,
    first_block,
    is_seen_by,
    load_block,
    oldest_seen,
    score_factors,
    sum_places,
)
from outrider.ops.attention.splits_triton import (
    EXACT,
    NOTHING_SEEN,
    SPLIT,
    begin_softmax,
    dim_tile,
    mean,
    merge_softmax,
    sinks_argument,
    split_start,
    splits_before,
)

COPY_BLOCK = 1024  # page ids copied by one program
COUNT_BLOCK = 64  # chunks counted at once


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillTiles:
    """Sizes of the chunk kernel. Keys and split are those of decode rows and decide bits."""

    rows: int = 128  # (token, head) pairs of a tile
    keys: int = 64
    split: int = SPLIT
    num_warps: int = 8
    num_stages: int = 3


def prefill_tiles(head_dim: int, dtype: torch.dtype) -> PrefillTiles:
    """The tiles of a model."""
    keys = block_keys(head_dim, dtype)
    if dtype == torch.float32:  # no tensor cores: operands are held in registers
        return PrefillTiles(rows=16, keys=keys, num_warps=8, num_stages=2)
    # A thread holds the sums of a split and of the splits before it: 128 rows of 256 do not fit.
    return PrefillTiles(rows=128 if head_dim <= 128 else 64, keys=keys)


# Views into packed buffers have any alignment, and sizes change from step to step.
@triton.jit(do_not_specialize=["rows", "starts", "counts", "num_chunks", "num_pages"])
def _place_kernel(
    rows, starts, counts, table, pages, bounds, num_chunks, num_pages, table_stride,
    BLOCK: tl.constexpr, COUNTED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    overlap.begin(PDL)
    chunk, part = tl.program_id(0), tl.program_id(1)
    column = part * BLOCK + tl.arange(0, BLOCK)
    inside = column < num_pages
    source = table + tl.load(rows + chunk) * table_stride + column
    page = tl.load(source, mask=inside, other=0).to(tl.int32)
    tl.store(pages + chunk.to(tl.int64) * num_pages + column, page, mask=inside)
    if part == 0:
        before = tl.zeros([COUNTED], tl.int64)
        for first in range(0, chunk, COUNTED):
            other = first + tl.arange(0, COUNTED)
            before += tl.load(counts + other, mask=other < chunk, other=0)
        tl.store(bounds + chunk, tl.load(starts + chunk).to(tl.int32))
        tl.store(bounds + num_chunks + chunk, tl.sum(before, 0).to(tl.int32))
        tl.store(bounds + 2 * num_chunks + chunk, tl.load(counts + chunk).to(tl.int32))


@triton.jit
def _slots(position, end, pages, PAGE_SIZE: tl.constexpr):
    """The slots of the keys at these positions, -1 from `end` on."""
    inside = position < end
    page = tl.load(pages + position // PAGE_SIZE, mask=inside, other=0)
    return tl.where(inside, page.to(tl.int64) * PAGE_SIZE + position % PAGE_SIZE, -1)


@triton.jit
def _add_keys(
    running_max, sums, acc, total_max, total_sum, total, query, keys, pages, own, begin, stop, end,
    inner, scale,
    KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr, PAGE_SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr, SPLIT: tl.constexpr, MASKED: tl.constexpr, COMPILED: tl.constexpr,
    WINDOW: tl.constexpr, CAPPED: tl.constexpr,
):  # fmt: skip
    """Add blocks of [begin, stop) to the running softmax; row i sees positions up to `own[i]`.

    Where a split ends, its result is merged with the result of the splits before it.
    """
    offset = tl.arange(0, BLOCK_N)
    slots = _slots(begin + offset, end, pages, PAGE_SIZE)
    split = splits_before(begin + 1, SPLIT)
    border = split_start(split, SPLIT)
    for start in range(begin, stop, BLOCK_N):
        position = start + offset
        wanted = (slots >= 0)[:, None] if MASKED else True
        key, value = load_block(keys, slots, wanted, query.dtype, KV_HEADS, HEAD_DIM, DIM)
        # Slots are looked up one block ahead, so loads of keys and values need not wait for them.
        slots = _slots(position + BLOCK_N, end, pages, PAGE_SIZE)
        score = capped(tl.dot(query, tl.trans(key), input_precision="ieee"), inner, CAPPED)
        if MASKED:
            score = tl.where(is_seen_by(position, own + 1, WINDOW), score, float("-inf"))
        running_max, sums, acc = add_block(running_max, sums, acc, score, value, scale)
        acc = finished(acc, COMPILED)
        if start + BLOCK_N == border:
            total_max, total_sum, total = merge_softmax(
                total_max, total_sum, total, running_max, sum_places(sums, False), acc
            )
            running_max = tl.full(running_max.shape, NOTHING_SEEN, tl.float32)
            split += 1
            border = split_start(split, SPLIT)
    return running_max, sums, acc, total_max, total_sum, total


@triton.jit
def find_tile(
    flat, bounds, num_chunks, GROUP: tl.constexpr, CHUNKS: tl.constexpr, BLOCK_M: tl.constexpr
):
    """The chunk of a tile and the tile's number in it. Past the last tile it is `num_chunks`.

    Every chunk has its own tiles of BLOCK_M (token, head) pairs, one chunk after another.
    """
    index = tl.arange(0, CHUNKS)
    inside = index < num_chunks
    counts = tl.load(bounds + 2 * num_chunks + index, mask=inside, other=0)
    num_tiles = (counts * GROUP + BLOCK_M - 1) // BLOCK_M
    ends = tl.cumsum(num_tiles, 0)
    is_before = inside & (ends <= flat)
    chunk = tl.sum(is_before.to(tl.int32), 0)
    return chunk, flat - tl.sum(tl.where(is_before, num_tiles, 0), 0)


@triton.jit(do_not_specialize=["pages", "bounds", "sinks", "num_pages", "num_chunks"])
def _attend_kernel(
    query, layer, out, pages, bounds, sinks, query_stride, num_pages, num_chunks, inner, scale,
    GROUP: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr, CHUNKS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    SPLIT: tl.constexpr, WINDOW: tl.constexpr, CAPPED: tl.constexpr, HAS_SINKS: tl.constexpr,
    COMPILED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    kv_head, column = tl.program_id(0), tl.arange(0, DIM)
    overlap.begin(PDL)
    flat = tl.num_programs(1) - 1 - tl.program_id(1)  # the longest tiles start first
    chunk, tile = find_tile(flat, bounds, num_chunks, GROUP, CHUNKS, BLOCK_M)
    if chunk < num_chunks:
        place = tile * BLOCK_M + tl.arange(0, BLOCK_M)
        offset, head = place // GROUP, kv_head * GROUP + place % GROUP
        start = tl.load(bounds + chunk)
        first = tl.load(bounds + num_chunks + chunk)
        count = tl.load(bounds + 2 * num_chunks + chunk)
        token = (first + offset).to(tl.int64)
        wanted = (offset < count)[:, None] & (column < HEAD_DIM)[None, :]
        source = query + token[:, None] * query_stride + head[:, None] * HEAD_DIM + column[None, :]
        q, keys = tl.load(source, mask=wanted, other=0.0), layer + kv_head * HEAD_DIM
        own, own_pages = start + offset, pages + chunk.to(tl.int64) * num_pages
        last = tl.minimum((tile * BLOCK_M + BLOCK_M - 1) // GROUP, count - 1)
        # A padding chunk may be longer than any text of the step.
        end = tl.minimum(start + last + 1, num_pages * PAGE_SIZE)
        # Blocks that every row of the tile sees completely need no mask.
        whole = tl.minimum(start + tile * BLOCK_M // GROUP + 1, end) // BLOCK_N * BLOCK_N
        oldest = 0
        if WINDOW != 0:
            oldest = tl.minimum(first_block(own + 1, WINDOW, BLOCK_N), whole)
            if WINDOW > 0:  # a window has few blocks that all rows see
                whole = oldest
            else:  # rows of one attention chunk see all of its blocks that are before the tile
                whole = tl.where(oldest_seen(end, WINDOW) > oldest, oldest, whole)
        nothing = tl.full([BLOCK_M], NOTHING_SEEN, tl.float32)
        total_max, total_sum = begin_softmax(sinks, head, offset < count, BLOCK_M, HAS_SINKS)
        no_sums = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        no_acc = tl.zeros([BLOCK_M, DIM], tl.float32)
        running_max, sums, acc, total_max, total_sum, total = _add_keys(
            nothing, no_sums, no_acc, total_max, total_sum, no_acc,
            q, keys, own_pages, own, oldest, whole, end, inner, scale,
            KV_HEADS, HEAD_DIM, DIM, PAGE_SIZE, BLOCK_N, SPLIT, False, COMPILED, WINDOW, CAPPED,
        )  # fmt: skip
        running_max, sums, acc, total_max, total_sum, total = _add_keys(
            running_max, sums, acc, total_max, total_sum, total,
            q, keys, own_pages, own, whole, end, end, inner, scale,
            KV_HEADS, HEAD_DIM, DIM, PAGE_SIZE, BLOCK_N, SPLIT, True, COMPILED, WINDOW, CAPPED,
        )  # fmt: skip
        total_max, total_sum, total = merge_softmax(
            total_max, total_sum, total, running_max, sum_places(sums, False), acc
        )
        acc = mean(total, total_sum, BLOCK_M)
        index = token * (KV_HEADS * GROUP) + head
        target = out + index[:, None] * HEAD_DIM + column[None, :]
        tl.store(target, acc.to(out.dtype.element_ty), mask=wanted)


def most_tiles(num_pairs: int, num_chunks: int, tile: int) -> int:
    """Tiles of any chunks with so many (token, head) pairs: each may end in a part of a tile."""
    return num_pairs // tile + num_chunks


def place_chunks(
    rows: torch.Tensor,  # [chunks] int64 index into the page table
    starts: torch.Tensor,  # [chunks] int64
    counts: torch.Tensor,  # [chunks] int64
    page_table: torch.Tensor,  # [table_rows, max_pages] int64
    *,
    out_pages: torch.Tensor,  # [chunks, pages] int32
    bounds: torch.Tensor,  # [3, chunks] int32 start, first flat token, number of tokens
) -> None:
    """Write what the layers of a step share: the pages and the token range of each chunk."""
    num_chunks, num_pages = out_pages.shape
    kernel: Any = _place_kernel[(num_chunks, triton.cdiv(num_pages, COPY_BLOCK))]
    kernel(
        rows,
        starts,
        counts,
        page_table,
        out_pages,
        bounds,
        num_chunks,
        num_pages,
        page_table.stride(0),
        BLOCK=COPY_BLOCK,
        COUNTED=COUNT_BLOCK,
        PDL=overlap.is_on(rows),
        **overlap.options(rows),
    )


def attend_chunks(
    query: torch.Tensor,  # [chunk.tokens, heads, head_dim], heads side by side, any token stride
    layer: torch.Tensor,  # [pages, page_size, 2 * kv_heads, head_dim]
    out: torch.Tensor,  # [chunk.tokens, heads, head_dim] contiguous
    *,
    pages: torch.Tensor,  # [chunks, pages] int32
    bounds: torch.Tensor,  # [3, chunks] int32
    rule: AttentionRule,
    tiles: PrefillTiles | None = None,
) -> None:
    """Causal attention of all chunk tokens.

    The launch depends on the total of tokens only, not on how chunks share them: so a captured
    graph serves any chunks of that total.
    """
    tiles = tiles or prefill_tiles(query.shape[2], query.dtype)
    (heads, head_dim), factors = query.shape[1:], score_factors(rule)
    assert query.stride()[1:] == (head_dim, 1), "the heads of a token lie side by side"
    kv_heads, page_size = layer.shape[2] // 2, layer.shape[1]
    group = heads // kv_heads
    num_chunks = bounds.shape[1]
    num_tiles = most_tiles(query.shape[0] * group, num_chunks, tiles.rows)
    kernel: Any = _attend_kernel[(kv_heads, num_tiles)]
    kernel(
        query, pool_argument(layer), out, pages, bounds, sinks_argument(rule, query),
        query.stride(0), pages.shape[1], num_chunks, factors.inner, factors.scale,
        GROUP=group, KV_HEADS=kv_heads, HEAD_DIM=head_dim,
        DIM=dim_tile(head_dim), PAGE_SIZE=page_size, CHUNKS=triton.next_power_of_2(num_chunks),
        BLOCK_M=tiles.rows, BLOCK_N=tiles.keys, SPLIT=tiles.split, WINDOW=factors.window,
        CAPPED=factors.is_capped, HAS_SINKS=rule.has_sinks, COMPILED=query.is_cuda,
        PDL=overlap.is_on(query), num_warps=tiles.num_warps, num_stages=tiles.num_stages,
        **EXACT, **overlap.options(query),
    )  # fmt: skip
