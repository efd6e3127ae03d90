"""Latent attention of decode rows over paged latents: one token, chains, trees, in Triton.

Like `decode_triton.py`, but a token stores one vector, [latent | rotated key]. The vector is the
key of every head, and its first part is the value. Heads and nodes are packed into the tile.
"""
# Triton reads kernels as source; it has no types for them.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from outrider.config.draft_config import MAX_NODES
from outrider.ops import dependent_launch as overlap
from outrider.ops.attention.latent_blocks_triton import add_history, add_paths
from outrider.ops.attention.latent_slices_triton import (
    Slices,
    choose_slices,
    combine_slices,
    keep_split,
    latent_split_start,
    num_latent_splits,
    rows_at_once,
    ways_to_slice,
)
from outrider.ops.attention.softmax_blocks_triton import LOG2_E, sum_places
from outrider.ops.attention.splits_triton import (
    EXACT,
    MOST_PARTIALS,
    NOTHING_SEEN,
    Partials,
    cut,
    dim_tile,
    partial_width,
)
from outrider.ops.attention.tree_paths_triton import DecodeTexts

_FEW_HEADS = 32

_MAX_NODES = tl.constexpr(MAX_NODES)


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentTiles:
    """Sizes of the kernels. They depend on the model only, never on a batch.

    Even with 16 heads and one node, where three quarters of the rows are empty, the products of a
    tile take less time than an H200 takes to read its latents.
    """

    rows: int = 64  # (node, head) pairs of a tile at most
    keys: int = 64
    split: int = 256
    num_warps: int = 8
    num_stages: int = 2


def latent_tiles(heads: int, latent: int, dtype: torch.dtype) -> LatentTiles:
    """The tiles of a model. With many heads, the result of a split is as large as many latents.

    Measured on an H200 (docs/lab/log.md): shorter splits are faster for one row of 4k only.
    """
    split = 1024 if heads > _FEW_HEADS else 512
    if dtype == torch.float32:  # no tensor cores: operands are held in registers
        return LatentTiles(rows=16, keys=16 if latent > 128 else 32, split=split)
    return LatentTiles(split=split)


@triton.jit(
    do_not_specialize=[
        "pages", "lengths", "queries", "limits", "tails", "part_max", "part_sum",
        "nodes", "spread", "num_pages", "num_splits", "span", "levels", "size",
    ]
)  # fmt: skip
def _attend_kernel(
    query, layer, out, pages, lengths, queries, limits, tails, part_acc, part_max, part_sum,
    query_stride, nodes, spread, num_pages, num_splits, span, levels, size, scale,
    HEADS: tl.constexpr, OF_NODE: tl.constexpr, LATENT: tl.constexpr, ROPE: tl.constexpr,
    LATENT_DIM: tl.constexpr, ROPE_DIM: tl.constexpr, PAGE_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, STAGES: tl.constexpr,
    TREE: tl.constexpr, SINGLE: tl.constexpr, DIRECT: tl.constexpr, RAGGED: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """A tile has OF_NODE heads of each of `spread` nodes and reads `span` = 2^levels splits.

    A split has `size` keys, or twice as many. SINGLE: one split per text. DIRECT: one slice.
    """
    HEAD_TILES: tl.constexpr = (HEADS + OF_NODE - 1) // OF_NODE
    tile, row = tl.program_id(0), tl.program_id(1)
    slice_ = tl.num_programs(2) - 1 - tl.program_id(2)  # long slices start first
    channel, column, rope_channel = (
        tl.arange(0, BLOCK_M),
        tl.arange(0, LATENT_DIM),
        tl.arange(0, ROPE_DIM),
    )
    head = tile % HEAD_TILES * OF_NODE + channel % OF_NODE
    first = tile // HEAD_TILES * spread
    node = first + tl.minimum(channel // OF_NODE, spread - 1)
    is_real = (channel < spread * OF_NODE) & (head < HEADS) & (node < nodes)
    token = row * nodes + node
    place_in_step = token.to(tl.int64)
    index = place_in_step * HEADS + head  # of partial results
    own_pages = pages + row.to(tl.int64) * num_pages
    own_limits, own_tails = limits + row * nodes, tails + row * nodes * _MAX_NODES
    stride = tl.num_programs(1).to(tl.int64) * nodes * HEADS
    first_place = index + stride * slice_ * (levels + 1)
    overlap.begin(PDL)
    if RAGGED:
        place_in_step = tl.load(queries + token, mask=is_real, other=-1).to(tl.int64)
        is_real = is_real & (place_in_step >= 0)
    goal = place_in_step * HEADS + head
    source = query + place_in_step[:, None] * query_stride + head[:, None] * (LATENT + ROPE)
    wanted = is_real[:, None] & (column < LATENT)[None, :]
    is_rope = is_real[:, None] & (rope_channel < ROPE)[None, :]
    limit, length = tl.load(limits + token, mask=is_real, other=0), tl.load(lengths + row)
    latent_query = tl.load(source + column[None, :], mask=wanted, other=0.0)
    rope_query = tl.load(source + LATENT + rope_channel[None, :], mask=is_rope, other=0.0)
    longest = tl.max(limit, 0)
    shortest = tl.min(tl.where(is_real, limit, longest), 0)
    start = slice_ * span
    stop = tl.minimum(start + span, num_splits)
    for split in range(start, stop):
        begin = latent_split_start(split, size)
        end = tl.minimum(latent_split_start(split + 1, size), longest)
        if begin < end:
            # Blocks that reach past the history are read along each node's own path.
            border = length // BLOCK_N * BLOCK_N if TREE else end
            running_max, sums, acc = add_history(
                tl.full([BLOCK_M], NOTHING_SEEN, tl.float32),
                tl.zeros([BLOCK_M, BLOCK_N], tl.float32),
                tl.zeros([BLOCK_M, LATENT_DIM], tl.float32), latent_query, rope_query, layer,
                own_pages, limit, shortest, begin, tl.minimum(border, end), scale,
                LATENT, ROPE, LATENT_DIM, ROPE_DIM, PAGE_SIZE, BLOCK_N, STAGES,
            )  # fmt: skip
            if TREE:
                running_max, sums, acc = add_paths(
                    running_max, sums, acc, latent_query, rope_query, layer, own_pages,
                    own_limits, own_tails, limit, node, nodes, length,
                    tl.maximum(begin, border), end, scale,
                    LATENT, ROPE, LATENT_DIM, ROPE_DIM, PAGE_SIZE, BLOCK_N, STAGES,
                )  # fmt: skip
            running_sum = sum_places(sums, False)
            if SINGLE:
                share = tl.div_rn(tl.full([BLOCK_M], 1.0, tl.float32), running_sum)[:, None]
                target = out + goal[:, None] * LATENT + column[None, :]
                tl.store(target, (acc * share).to(out.dtype.element_ty), mask=wanted)
            else:
                keep_split(
                    running_max, running_sum, acc, out, part_acc, part_max, part_sum, goal,
                    is_real, first_place, stride, split - start, levels,
                    (end == longest) | (split + 1 == stop), BLOCK_M, LATENT, LATENT_DIM, DIRECT,
                )  # fmt: skip


def attend_latent_decode(
    query: torch.Tensor,  # [num_decode_query, heads, latent + rope], heads side by side
    layer: torch.Tensor,  # [pages, page_size, 1, latent + rope] contiguous
    out: torch.Tensor,  # [num_decode_query, heads, latent] contiguous
    *,
    pages: torch.Tensor,  # [rows, pages] int32
    lengths: torch.Tensor,  # [rows] int32
    queries: torch.Tensor,  # [rows * nodes] int32, or nothing, as in `DecodeTexts`
    limits: torch.Tensor,  # [rows * nodes] int32
    tails: torch.Tensor,  # [rows * nodes, 64] int32
    partials: torch.Tensor,  # [num_partials or more] float32
    scale: float,
    is_tree: bool,
    tiles: LatentTiles | None = None,
    span: int | None = None,
) -> None:
    """Every node over its own text, in bf16, fp16 or fp32; sums are in fp32.

    A launch runs as many rows as the workspace has room for, and a program reads as many splits
    (`span`, a power of 2) as keep all cores busy. Neither changes a bit.
    """
    num_rows, (heads, width) = lengths.shape[0], query.shape[1:]
    assert query.stride()[1:] == (width, 1), "the heads of a token lie side by side"
    texts = DecodeTexts(pages=pages, lengths=lengths, queries=queries, limits=limits, tails=tails)
    nodes, keys, latent = texts.nodes, pages.shape[1] * layer.shape[1], out.shape[2]
    tiles = tiles or latent_tiles(heads, latent, query.dtype)
    packing = _packing(tiles.rows, heads=heads, nodes=nodes)
    room = partials.numel() // (nodes * partial_width(heads, latent))  # partial results of a row
    slices = choose_slices(keys, tiles.split, rows=num_rows, tiles=packing.num_tiles, room=room)
    if span is not None:
        slices = next(
            way for way in ways_to_slice(keys, tiles.split, room=room) if way.span == span
        )
    at_once = rows_at_once(num_rows, slices, room)
    for first in range(0, num_rows, at_once):
        tokens = slice(first * nodes, (first + at_once) * nodes)
        some = texts.of_rows(slice(first, first + at_once), tokens)
        parts = cut(partials, some.limits.shape[0] * heads * slices.num_partials, latent)
        own = slice(None) if texts.is_ragged else tokens
        _attend(
            query[own], layer, out[own], some, parts,
            slices, scale * LOG2_E, packing, tiles, is_tree=is_tree,
        )  # fmt: skip
        if slices.count > 1:
            combine_slices(parts, out[own], some, slices, tiles.split)


def num_latent_partials(*, rows: int, nodes: int, keys: int, heads: int, latent: int) -> int:
    """Floats of the workspace for so many rows over so many keys.

    It never exceeds 256 MiB, or what a single row needs.
    """
    splits = num_latent_splits(keys, split=latent_tiles(heads, latent, torch.bfloat16).split)
    if splits == 1:
        return 0
    per_row = nodes * splits * partial_width(heads, latent)
    return min(rows * per_row, max(MOST_PARTIALS, per_row))


@dataclass(frozen=True, slots=True)
class _Packing:
    """How the heads of a row's nodes are packed into tiles."""

    of_node: int  # heads of one node in a tile
    spread: int  # nodes of a tile
    num_tiles: int  # of a row


def _packing(rows: int, *, heads: int, nodes: int) -> _Packing:
    of_node = min(heads, rows)
    spread = rows // of_node if of_node == heads else 1
    return _Packing(of_node, spread, triton.cdiv(heads, of_node) * triton.cdiv(nodes, spread))


def _attend(
    query: torch.Tensor,
    layer: torch.Tensor,
    out: torch.Tensor,
    texts: DecodeTexts,
    parts: Partials,
    slices: Slices,
    scale: float,
    packing: _Packing,
    tiles: LatentTiles,
    *,
    is_tree: bool,
) -> None:
    num_rows, num_pages = texts.pages.shape
    heads, width = query.shape[1:]
    latent, page_size, nodes = out.shape[2], layer.shape[1], texts.nodes
    kernel: Any = _attend_kernel[(packing.num_tiles, num_rows, slices.count)]
    kernel(
        query, layer, out, texts.pages, texts.lengths, texts.queries, texts.limits, texts.tails,
        parts.values, parts.maxima, parts.weights,
        query.stride(0), nodes, packing.spread, num_pages,
        slices.splits, slices.span, slices.levels, tiles.split, scale,
        HEADS=heads, OF_NODE=packing.of_node, LATENT=latent, ROPE=width - latent,
        LATENT_DIM=dim_tile(latent), ROPE_DIM=dim_tile(width - latent), PAGE_SIZE=page_size,
        BLOCK_M=tiles.rows, BLOCK_N=tiles.keys, STAGES=tiles.num_stages,
        TREE=is_tree, SINGLE=slices.splits == 1, DIRECT=slices.count == 1,
        RAGGED=texts.is_ragged, PDL=overlap.is_on(query),
        num_warps=tiles.num_warps, num_stages=tiles.num_stages, **EXACT, **overlap.options(query),
    )  # fmt: skip
