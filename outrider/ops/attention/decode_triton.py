"""Attention of decode rows over paged KV: one token, chains, trees and draft steps, in Triton.

Every node is a plain decode over its own path. Keys are read in blocks and splits at fixed
absolute positions, so the bits of a node depend on its text only, not on tree, batch or shape.
"""
# Triton reads kernels as source; it has no types for them.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from typing import Any

import torch
import triton
import triton.language as tl

from outrider.config.draft_config import MAX_NODES
from outrider.ops import dependent_launch as overlap
from outrider.ops import gpu_facts
from outrider.ops.attention.attention_rule import AttentionRule
from outrider.ops.attention.decode_tiles_triton import FEW_ROWS, DecodeTiles, decode_tiles
from outrider.ops.attention.kv_codes_triton import pool_argument
from outrider.ops.attention.softmax_blocks_triton import (
    add_block,
    capped,
    first_block,
    is_seen_by,
    load_block,
    score_factors,
    sum_places,
)
from outrider.ops.attention.splits_triton import (
    EXACT,
    NOTHING_SEEN,
    Partials,
    begin_softmax,
    combine,
    cut,
    dim_tile,
    first_split,
    mean,
    merge_softmax,
    num_splits,
    partial_width,
    sees_split,
    sinks_argument,
    split_start,
    splits_before,
)
from outrider.ops.attention.tree_paths_triton import DecodeTexts, path_slots, slots_of

# Bytes of history per layer that the tiles of a tree may read again: the L2 cache holds them.
CACHED_BYTES = 16 << 20  # measured at 8 rows of 16 nodes
IDLE_CACHED_BYTES = 64 << 20  # up to FEW_ROWS rows

_MAX_NODES = tl.constexpr(MAX_NODES)


@triton.jit
def _add_block(
    running_max, sums, acc, query, keys, slots, is_visible, inner, scale,
    KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr, CAPPED: tl.constexpr,
):  # fmt: skip
    """Add the keys and values at these slots to the running softmax."""
    wanted = (slots >= 0)[:, None]
    key, value = load_block(keys, slots, wanted, query.dtype, KV_HEADS, HEAD_DIM, DIM)
    score = tl.dot(query, tl.trans(key), input_precision="ieee")
    score = tl.where(is_visible, capped(score, inner, CAPPED), float("-inf"))
    return add_block(running_max, sums, acc, score, value, scale)


@triton.jit
def _add_history(
    running_max, sums, acc, query, keys, slots, pages, limit, begin, end, inner, scale,
    KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr, BLOCK_N: tl.constexpr, WINDOW: tl.constexpr, CAPPED: tl.constexpr,
):  # fmt: skip
    """Add keys in [begin, end) that lie at their own positions, the same for all tile rows."""
    offset = tl.arange(0, BLOCK_N)
    slots = tl.where(begin + offset < end, slots, -1)
    for start in range(begin, end, BLOCK_N):
        position = start + offset
        # Slots are looked up one block ahead, so loads of keys and values need not wait for them.
        ahead = slots_of(position + BLOCK_N, end, end, pages, pages, PAGE_SIZE, False)
        running_max, sums, acc = _add_block(
            running_max, sums, acc, query, keys, slots, is_seen_by(position, limit, WINDOW),
            inner, scale, KV_HEADS, HEAD_DIM, DIM, CAPPED,
        )  # fmt: skip
        slots = ahead
    return running_max, sums, acc


@triton.jit
def _add_paths(
    running_max, sums, acc, query, keys, pages, limits, tails, limit, node, nodes, length,
    begin, end, inner, scale,
    KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr, BLOCK_N: tl.constexpr, WINDOW: tl.constexpr, CAPPED: tl.constexpr,
):  # fmt: skip
    """Add keys in [begin, end) along the path of each node of the tile, to that node only."""
    first, last = tl.min(node, 0), tl.minimum(tl.max(node, 0), nodes - 1)
    steps = tl.cdiv(tl.maximum(end - begin, 0), BLOCK_N)
    divisor = tl.maximum(steps, 1)
    slots = path_slots(
        0, divisor, first, begin, end, length, limits, tails, pages, PAGE_SIZE, BLOCK_N
    )  # fmt: skip
    for step in range(0, (last - first + 1) * steps):
        position = begin + step % divisor * BLOCK_N + tl.arange(0, BLOCK_N)
        is_own = node == first + step // divisor
        ahead = path_slots(
            tl.minimum(step + 1, (last - first + 1) * steps - 1), divisor, first, begin, end,
            length, limits, tails, pages, PAGE_SIZE, BLOCK_N,
        )  # fmt: skip
        is_visible = is_seen_by(position, limit, WINDOW) & is_own[:, None]
        running_max, sums, acc = _add_block(
            running_max, sums, acc, query, keys, slots, is_visible, inner, scale,
            KV_HEADS, HEAD_DIM, DIM, CAPPED,
        )  # fmt: skip
        slots = ahead
    return running_max, sums, acc


@triton.jit
def _read_split(
    query, keys, slots, pages, limits, tails, limit, node, nodes, length, begin, end, inner, scale,
    KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr, PAGE_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, TREE: tl.constexpr, WINDOW: tl.constexpr,
    CAPPED: tl.constexpr,
):  # fmt: skip
    """The softmax over keys in [begin, end) only; the slots of the first block are in `slots`."""
    if WINDOW != 0:
        begin = tl.maximum(begin, first_block(limit, WINDOW, BLOCK_N))
        slots = slots_of(begin + tl.arange(0, BLOCK_N), end, end, pages, pages, PAGE_SIZE, False)
    # Blocks that reach past the history are read along each node's own path.
    border = length // BLOCK_N * BLOCK_N if TREE else end
    running_max, sums, acc = _add_history(
        tl.full([BLOCK_M], NOTHING_SEEN, tl.float32), tl.zeros([BLOCK_M, BLOCK_N], tl.float32),
        tl.zeros([BLOCK_M, DIM], tl.float32), query, keys, slots, pages, limit,
        begin, tl.minimum(border, end), inner, scale,
        KV_HEADS, HEAD_DIM, DIM, PAGE_SIZE, BLOCK_N, WINDOW, CAPPED,
    )  # fmt: skip
    if TREE:
        running_max, sums, acc = _add_paths(
            running_max, sums, acc, query, keys, pages, limits, tails, limit, node, nodes, length,
            tl.maximum(begin, border), end, inner, scale,
            KV_HEADS, HEAD_DIM, DIM, PAGE_SIZE, BLOCK_N, WINDOW, CAPPED,
        )  # fmt: skip
    return running_max, sum_places(sums, True), acc


@triton.jit
def _read_splits(
    query, keys, slots, pages, limits, tails, limit, node, nodes, length, most, inner, scale,
    total_max, total_sum,
    KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr, PAGE_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SPLIT: tl.constexpr, WINDOW: tl.constexpr,
    CAPPED: tl.constexpr,
):  # fmt: skip
    """The softmax over all keys of a tree, one split after another."""
    longest, offset = tl.max(limit, 0), tl.arange(0, BLOCK_N)
    total = tl.zeros([BLOCK_M, DIM], tl.float32)
    for split in range(first_split(limit, WINDOW, SPLIT), splits_before(longest, SPLIT)):
        begin, after = split_start(split, SPLIT), split_start(split + 1, SPLIT)
        running_max, running_sum, acc = _read_split(
            query, keys, slots, pages, limits, tails, limit, node, nodes, length,
            begin, tl.minimum(after, longest), inner, scale,
            KV_HEADS, HEAD_DIM, DIM, PAGE_SIZE, BLOCK_M, BLOCK_N, True, WINDOW, CAPPED,
        )  # fmt: skip
        slots = slots_of(after + offset, most, most, pages, pages, PAGE_SIZE, False)
        total_max, total_sum, total = merge_softmax(
            total_max, total_sum, total, running_max, running_sum, acc
        )
    return total_sum, total


@triton.jit
def _read_whole(
    query, keys, slots, pages, limit, inner, scale, total_max, total_sum,
    KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr, PAGE_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SPLIT: tl.constexpr, WINDOW: tl.constexpr,
    CAPPED: tl.constexpr,
):  # fmt: skip
    """The same as `_read_splits` for a chain; loads run on across the borders of splits."""
    longest, offset = tl.max(limit, 0), tl.arange(0, BLOCK_N)
    nothing = tl.full([BLOCK_M], NOTHING_SEEN, tl.float32)
    no_sums, no_acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32), tl.zeros([BLOCK_M, DIM], tl.float32)
    running_max, sums, acc, total = nothing, no_sums, no_acc, no_acc
    first, split = 0, 1
    if WINDOW != 0:
        first, split = first_block(limit, WINDOW, BLOCK_N), first_split(limit, WINDOW, SPLIT) + 1
        slots = slots_of(first + offset, longest, longest, pages, pages, PAGE_SIZE, False)
    border = split_start(split, SPLIT)
    slots = tl.where(first + offset < longest, slots, -1)
    for start in range(first, longest, BLOCK_N):
        position = start + offset
        ahead = slots_of(position + BLOCK_N, longest, longest, pages, pages, PAGE_SIZE, False)
        running_max, sums, acc = _add_block(
            running_max, sums, acc, query, keys, slots, is_seen_by(position, limit, WINDOW),
            inner, scale, KV_HEADS, HEAD_DIM, DIM, CAPPED,
        )  # fmt: skip
        slots = ahead
        if start + BLOCK_N == border:
            total_max, total_sum, total = merge_softmax(
                total_max, total_sum, total, running_max, sum_places(sums, True), acc
            )
            running_max, sums, acc = nothing, no_sums, no_acc
            split += 1
            border = split_start(split, SPLIT)
    total_max, total_sum, total = merge_softmax(
        total_max, total_sum, total, running_max, sum_places(sums, True), acc
    )
    return total_sum, total


@triton.jit(
    do_not_specialize=[
        "pages", "lengths", "queries", "limits", "tails", "sinks", "part_max", "part_sum",
        "nodes", "spread", "num_pages", "num_tiles",
    ]
)  # fmt: skip
def _attend_kernel(
    query, layer, out, pages, lengths, queries, limits, tails, sinks, part_acc, part_max, part_sum,
    query_stride, nodes, spread, num_pages, num_tiles, inner, scale,
    GROUP: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SPLIT: tl.constexpr,
    WINDOW: tl.constexpr, CAPPED: tl.constexpr, HAS_SINKS: tl.constexpr,
    TREE: tl.constexpr, WHOLE: tl.constexpr, RAGGED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """A tile reads one split or, if WHOLE, all splits one after another."""
    # Tiles of one row that read the same keys are neighbours; long splits start first.
    tile, kv_head = tl.program_id(0) % num_tiles, tl.program_id(0) // num_tiles
    row, split = tl.program_id(1), tl.num_programs(2) - 1 - tl.program_id(2)
    channel, column = tl.arange(0, BLOCK_M), tl.arange(0, DIM)
    place = tile * spread * GROUP + channel
    is_real = (channel < spread * GROUP) & (place < nodes * GROUP)
    node = tl.minimum(place // GROUP, tile * spread + spread - 1)
    token, head = row * nodes + node, kv_head * GROUP + place % GROUP
    place_in_step = token.to(tl.int64)
    own_pages, keys = pages + row.to(tl.int64) * num_pages, layer + kv_head * HEAD_DIM
    own_limits, own_tails = limits + row * nodes, tails + row * nodes * _MAX_NODES
    begin, offset, most = split_start(split, SPLIT), tl.arange(0, BLOCK_N), num_pages * PAGE_SIZE
    overlap.begin(PDL)
    if RAGGED:
        place_in_step = tl.load(queries + token, mask=is_real, other=-1).to(tl.int64)
        is_real = is_real & (place_in_step >= 0)
    wanted = is_real[:, None] & (column < HEAD_DIM)[None, :]
    source = query + place_in_step[:, None] * query_stride + head[:, None] * HEAD_DIM
    # Loads that do not depend on the limits are issued together with theirs.
    limit, length = tl.load(limits + token, mask=is_real, other=0), tl.load(lengths + row)
    q = tl.load(source + column[None, :], mask=wanted, other=0.0)
    slots = slots_of(begin + offset, most, most, own_pages, own_pages, PAGE_SIZE, False)
    longest = tl.max(limit, 0)
    if WHOLE:
        total_max, total_sum = begin_softmax(sinks, head, is_real, BLOCK_M, HAS_SINKS)
        if TREE:
            total_sum, total = _read_splits(
                q, keys, slots, own_pages, own_limits, own_tails, limit, node, nodes, length, most,
                inner, scale, total_max, total_sum,
                KV_HEADS, HEAD_DIM, DIM, PAGE_SIZE, BLOCK_M, BLOCK_N, SPLIT, WINDOW, CAPPED,
            )  # fmt: skip
        else:
            total_sum, total = _read_whole(
                q, keys, slots, own_pages, limit, inner, scale, total_max, total_sum,
                KV_HEADS, HEAD_DIM, DIM, PAGE_SIZE, BLOCK_M, BLOCK_N, SPLIT, WINDOW, CAPPED,
            )  # fmt: skip
        index = place_in_step * (KV_HEADS * GROUP) + head
        target = out + index[:, None] * HEAD_DIM + column[None, :]
        tl.store(target, mean(total, total_sum, BLOCK_M).to(out.dtype.element_ty), mask=wanted)
    else:
        end = tl.minimum(split_start(split + 1, SPLIT), longest)
        if (begin < end) & (split >= first_split(limit, WINDOW, SPLIT)):
            running_max, running_sum, acc = _read_split(
                q, keys, slots, own_pages, own_limits, own_tails, limit, node, nodes, length,
                begin, end, inner, scale,
                KV_HEADS, HEAD_DIM, DIM, PAGE_SIZE, BLOCK_M, BLOCK_N, TREE, WINDOW, CAPPED,
            )  # fmt: skip
            index = token.to(tl.int64) * (KV_HEADS * GROUP) + head
            index += tl.num_programs(1).to(tl.int64) * nodes * (KV_HEADS * GROUP) * split
            is_seen = is_real & sees_split(split, limit, WINDOW, SPLIT)
            tl.store(part_max + index, running_max, mask=is_seen)
            tl.store(part_sum + index, running_sum, mask=is_seen)
            target = part_acc + index[:, None] * HEAD_DIM + column[None, :]
            tl.store(target, acc, mask=wanted & is_seen[:, None])


def attend_decode(
    query: torch.Tensor,  # [num_decode_query, heads, head_dim], heads side by side
    layer: torch.Tensor,  # [pages, page_size, 2 * kv_heads, head_dim] contiguous
    out: torch.Tensor,  # [num_decode_query, heads, head_dim] contiguous
    *,
    pages: torch.Tensor,  # [rows, pages] int32
    lengths: torch.Tensor,  # [rows] int32
    queries: torch.Tensor,  # [rows * nodes] int32, or nothing, as in `DecodeTexts`
    limits: torch.Tensor,  # [rows * nodes] int32
    tails: torch.Tensor,  # [rows * nodes, 64] int32
    partials: torch.Tensor,  # [num_partials or more] float32
    rule: AttentionRule,
    is_tree: bool,
    tiles: DecodeTiles | None = None,
) -> None:
    """Attention of every node over its own text, in bf16, fp16 or fp32; sums are in fp32.

    Where rows fill the device, each tile reads its whole text. Otherwise splits run in parallel,
    with as many rows per launch as the workspace has room for.
    """
    num_rows, (heads, head_dim) = lengths.shape[0], query.shape[1:]
    assert query.stride()[1:] == (head_dim, 1), "the heads of a token lie side by side"
    nodes, keys = limits.shape[0] // num_rows, pages.shape[1] * layer.shape[1]
    packed = nodes * heads // (layer.shape[2] // 2)
    shared = gpu_facts.shared_bytes(query)
    tiles = tiles or decode_tiles(
        head_dim, query.dtype, packed=packed, num_rows=num_rows, shared=shared
    )
    splits = num_splits(keys, split=tiles.split)
    is_whole = _is_whole(tiles, num_tiles=num_rows * layer.shape[2] // 2, splits=splits)
    per_row = nodes * splits * partial_width(heads, head_dim)
    at_once = num_rows if is_whole else min(num_rows, partials.numel() // per_row)
    texts = DecodeTexts(pages=pages, lengths=lengths, queries=queries, limits=limits, tails=tails)
    unused = Partials(values=partials, maxima=partials, weights=partials)
    for first in range(0, num_rows, at_once):
        tokens = slice(first * nodes, (first + at_once) * nodes)
        some = texts.of_rows(slice(first, first + at_once), tokens)
        count = splits * some.limits.shape[0] * heads
        parts = unused if is_whole else cut(partials, count, head_dim)
        own = slice(None) if texts.is_ragged else tokens
        _attend(
            query[own], layer, out[own], some, parts,
            1 if is_whole else splits, rule, tiles, is_tree=is_tree, is_whole=is_whole,
        )  # fmt: skip
        if not is_whole:
            combine(parts, out[own], some, tiles.split, rule)


def _is_whole(tiles: DecodeTiles, *, num_tiles: int, splits: int) -> bool:
    """Whether each tile reads its whole text, rather than one of several parallel splits."""
    return num_tiles >= tiles.many or splits <= 1 + num_tiles // tiles.worth


def _attend(
    query: torch.Tensor,
    layer: torch.Tensor,
    out: torch.Tensor,
    texts: DecodeTexts,
    parts: Partials,
    splits: int,  # in parallel
    rule: AttentionRule,
    tiles: DecodeTiles,
    *,
    is_tree: bool,
    is_whole: bool,
) -> None:
    (heads, head_dim), factors = query.shape[1:], score_factors(rule)
    num_rows, num_pages = texts.pages.shape
    kv_heads, page_size, nodes = layer.shape[2] // 2, layer.shape[1], texts.nodes
    group = heads // kv_heads
    spread = tiles.rows // group
    if is_tree:
        row_bytes = num_pages * page_size * kv_heads * 2 * head_dim * layer.element_size()
        spread = _spread(spread, num_rows=num_rows, nodes=nodes, row_bytes=row_bytes)
    num_tiles = triton.cdiv(nodes, spread)
    kernel: Any = _attend_kernel[(num_tiles * kv_heads, num_rows, splits)]
    kernel(
        query, pool_argument(layer), out,
        texts.pages, texts.lengths, texts.queries, texts.limits, texts.tails,
        sinks_argument(rule, query), parts.values, parts.maxima, parts.weights,
        query.stride(0), nodes, spread, num_pages, num_tiles,
        factors.inner, factors.scale,
        GROUP=group, KV_HEADS=kv_heads, HEAD_DIM=head_dim,
        DIM=dim_tile(head_dim), PAGE_SIZE=page_size,
        BLOCK_M=tiles.rows, BLOCK_N=tiles.keys, SPLIT=tiles.split,
        WINDOW=factors.window, CAPPED=factors.is_capped, HAS_SINKS=rule.has_sinks,
        TREE=is_tree, WHOLE=is_whole, RAGGED=texts.is_ragged, PDL=overlap.is_on(query),
        num_warps=tiles.num_warps, num_stages=tiles.num_stages, **EXACT, **overlap.options(query),
    )  # fmt: skip


def _spread(most: int, *, num_rows: int, nodes: int, row_bytes: int) -> int:
    """Nodes of a tile of a tree.

    A tile reads their paths one after another, so few nodes are better as long as the history,
    which every tile reads again, is in the cache.
    """
    spread, limit = 1, IDLE_CACHED_BYTES if num_rows <= FEW_ROWS else CACHED_BYTES
    while spread < most and num_rows * -(-nodes // spread) * row_bytes > limit:
        spread *= 2
    return min(spread, most)
