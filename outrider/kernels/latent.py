"""Latent attention of uniform rows over paged latents: decode, chains, trees, in Triton.

As `kernels/attention.py` in all but what is stored: one vector per token, [latent | rotated key],
is the key of every head, and its first part the value. Heads and nodes are packed into the tile.
The results of splits are merged one after another in order of position, by whoever computed them
or by a launch of its own: that changes no bit.
"""
# Triton reads kernels as source; it has no types for them.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from outrider.kernels import overlap
from outrider.kernels.attention import LOG2_E
from outrider.kernels.paths import MAX_NODES, path_slots, slots_of
from outrider.kernels.splits import (
    EXACT,
    NOTHING_SEEN,
    dim_tile,
    num_splits,
    partial_width,
    split_start,
)

_FEW_HEADS = 32
_PAIRS = 4  # heads of tokens that one program merges

_MAX_NODES = tl.constexpr(MAX_NODES)
_PART = tl.constexpr(64)  # columns of a tile that are merged at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles:
    """Sizes of the kernels. They follow from the model alone, never from a batch.

    Even with 16 heads and one node, three quarters of the rows empty, the products of a tile take
    less time than an H200 takes to read its latents.
    """

    rows: int = 64  # (node, head) pairs of a tile at most
    keys: int = 64
    split: int = 256
    num_warps: int = 8
    num_stages: int = 2
    many: int = 120  # tiles of a step that fill a GPU without splits; changes no bits


def tiles_of(heads: int, latent: int, dtype: torch.dtype) -> Tiles:
    """The tiles of a model. A split of many heads leaves the bytes of hundreds of latents."""
    split = 512 if heads > _FEW_HEADS else 256
    if dtype == torch.float32:  # no tensor cores: operands are held in registers
        return Tiles(rows=16, keys=16 if latent > 128 else 32, split=split)
    return Tiles(split=split)


@triton.jit
def see(
    state_max, sums, acc, latent_query, turned_query, stored, slots, is_visible, scale,
    LATENT: tl.constexpr, ROPE: tl.constexpr, LATENT_DIM: tl.constexpr, ROPE_DIM: tl.constexpr,
):  # fmt: skip
    """One block of latents enters the running softmax, which is in base 2."""
    lane, turn = tl.arange(0, LATENT_DIM), tl.arange(0, ROPE_DIM)
    source, is_stored = stored + slots[:, None] * (LATENT + ROPE), (slots >= 0)[:, None]
    latent = tl.load(
        source + lane[None, :], mask=is_stored & (lane < LATENT)[None, :], other=0.0
    )  # fmt: skip
    turned = tl.load(
        source + LATENT + turn[None, :], mask=is_stored & (turn < ROPE)[None, :], other=0.0
    )  # fmt: skip
    score = tl.dot(turned_query, tl.trans(turned), input_precision="ieee")
    score = tl.dot(latent_query, tl.trans(latent), score, input_precision="ieee")
    score = tl.where(is_visible, score, float("-inf"))
    new_max = tl.maximum(state_max, tl.max(score, 1) * scale)
    weight = tl.exp2(tl.fma(score, scale, -new_max[:, None]))
    kept = tl.exp2(state_max - new_max)
    sums = sums * kept[:, None] + weight
    acc = tl.dot(weight.to(latent.dtype), latent, acc * kept[:, None], input_precision="ieee")
    return new_max, sums, acc


@triton.jit
def _see_history(
    state_max, sums, acc, latent_query, turned_query, stored, pages, limit, begin, end, scale,
    LATENT: tl.constexpr, ROPE: tl.constexpr, LATENT_DIM: tl.constexpr, ROPE_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Latents in [begin, end) that lie at their own positions, the same for all lanes."""
    offset = tl.arange(0, BLOCK_N)
    slots = slots_of(begin + offset, end, end, pages, pages, PAGE_SIZE, False)
    for start in range(begin, end, BLOCK_N):
        position = start + offset
        # Looked up one block ahead, so that the loads of latents wait for nobody.
        ahead = slots_of(position + BLOCK_N, end, end, pages, pages, PAGE_SIZE, False)
        is_visible = position[None, :] < limit[:, None]
        state_max, sums, acc = see(
            state_max, sums, acc, latent_query, turned_query, stored, slots, is_visible, scale,
            LATENT, ROPE, LATENT_DIM, ROPE_DIM,
        )  # fmt: skip
        slots = ahead
    return state_max, sums, acc


@triton.jit
def _see_paths(
    state_max, sums, acc, latent_query, turned_query, stored, pages, limits, tails, limit, node,
    nodes, length, begin, end, scale,
    LATENT: tl.constexpr, ROPE: tl.constexpr, LATENT_DIM: tl.constexpr, ROPE_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Latents in [begin, end) along the path of each node of the tile, seen by that node alone."""
    first, last = tl.min(node, 0), tl.minimum(tl.max(node, 0), nodes - 1)
    steps = tl.cdiv(tl.maximum(end - begin, 0), BLOCK_N)
    divisor = tl.maximum(steps, 1)
    for step in range(0, (last - first + 1) * steps):
        slots = path_slots(
            step, divisor, first, begin, end, length, limits, tails, pages, PAGE_SIZE, BLOCK_N
        )  # fmt: skip
        position = begin + step % divisor * BLOCK_N + tl.arange(0, BLOCK_N)
        is_own = node == first + step // divisor
        is_visible = (position[None, :] < limit[:, None]) & is_own[:, None]
        state_max, sums, acc = see(
            state_max, sums, acc, latent_query, turned_query, stored, slots, is_visible, scale,
            LATENT, ROPE, LATENT_DIM, ROPE_DIM,
        )  # fmt: skip
    return state_max, sums, acc


@triton.jit
def _merge_parts(
    totals, fresh, out, index, is_real, kept, weight, share, is_first, is_last,
    LATENT: tl.constexpr, LATENT_DIM: tl.constexpr,
):  # fmt: skip
    """Add a split to what was seen before it, some columns at a time."""
    PART: tl.constexpr = _PART if LATENT_DIM > _PART else LATENT_DIM
    for first in range(0, LATENT_DIM, PART):
        column = first + tl.arange(0, PART)
        inside = is_real[:, None] & (column < LATENT)[None, :]
        at = index[:, None] * LATENT + column[None, :]
        before = tl.load(totals + at, mask=inside & (not is_first), other=0.0)
        acc = tl.load(fresh + at, mask=inside, other=0.0)
        total = before * kept[:, None] + acc * weight[:, None]
        tl.store(totals + at, total, mask=inside & (not is_last))
        total = total * share[:, None]
        tl.store(out + at, total.to(out.dtype.element_ty), mask=inside & is_last)


@triton.jit(
    do_not_specialize=[
        "pages", "lengths", "limits", "tails", "part_max", "part_sum",
        "nodes", "spread", "num_pages", "num_splits",
    ]
)  # fmt: skip
def _attend_kernel(
    query, layer, out, pages, lengths, limits, tails, part_acc, part_max, part_sum,
    query_stride, nodes, spread, num_pages, num_splits, scale,
    HEADS: tl.constexpr, OF_NODE: tl.constexpr, LATENT: tl.constexpr, ROPE: tl.constexpr,
    LATENT_DIM: tl.constexpr, ROPE_DIM: tl.constexpr, PAGE_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SPLIT: tl.constexpr,
    TREE: tl.constexpr, WHOLE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """A tile has OF_NODE heads of each of `spread` nodes; alone it sees a split, WHOLE all."""
    HEAD_TILES: tl.constexpr = (HEADS + OF_NODE - 1) // OF_NODE
    tile, row = tl.program_id(0), tl.program_id(1)
    lane, column, turn = tl.arange(0, BLOCK_M), tl.arange(0, LATENT_DIM), tl.arange(0, ROPE_DIM)
    head = tile % HEAD_TILES * OF_NODE + lane % OF_NODE
    first = tile // HEAD_TILES * spread
    node = first + tl.minimum(lane // OF_NODE, spread - 1)
    is_real = (lane < spread * OF_NODE) & (head < HEADS) & (node < nodes)
    token = row * nodes + node
    index = token.to(tl.int64) * HEADS + head
    source = query + token.to(tl.int64)[:, None] * query_stride + head[:, None] * (LATENT + ROPE)
    wanted = is_real[:, None] & (column < LATENT)[None, :]
    is_turned = is_real[:, None] & (turn < ROPE)[None, :]
    own_pages = pages + row.to(tl.int64) * num_pages
    own_limits, own_tails = limits + row * nodes, tails + row * nodes * _MAX_NODES
    overlap.begin(PDL)
    limit, length = tl.load(limits + token, mask=is_real, other=0), tl.load(lengths + row)
    latent_query = tl.load(source + column[None, :], mask=wanted, other=0.0)
    turned_query = tl.load(source + LATENT + turn[None, :], mask=is_turned, other=0.0)
    # Long splits start first; a whole text is seen from its beginning.
    split = 0 if WHOLE else tl.num_programs(2) - 1 - tl.program_id(2)
    stop = num_splits if WHOLE else split + 1
    longest = tl.max(limit, 0)
    total_max = tl.full([BLOCK_M], NOTHING_SEEN, tl.float32)
    total_sum = tl.zeros([BLOCK_M], tl.float32)
    fresh = part_acc + tl.num_programs(1).to(tl.int64) * nodes * (HEADS * LATENT)
    for current in range(split, stop):
        begin = split_start(current, SPLIT)
        end = tl.minimum(split_start(current + 1, SPLIT), longest)
        if begin < end:
            # Blocks that reach past the history are seen along each node's own path.
            border = length // BLOCK_N * BLOCK_N if TREE else end
            state_max, sums, acc = _see_history(
                tl.full([BLOCK_M], NOTHING_SEEN, tl.float32),
                tl.zeros([BLOCK_M, BLOCK_N], tl.float32),
                tl.zeros([BLOCK_M, LATENT_DIM], tl.float32), latent_query, turned_query, layer,
                own_pages, limit, begin, tl.minimum(border, end), scale,
                LATENT, ROPE, LATENT_DIM, ROPE_DIM, PAGE_SIZE, BLOCK_N,
            )  # fmt: skip
            if TREE:
                state_max, sums, acc = _see_paths(
                    state_max, sums, acc, latent_query, turned_query, layer, own_pages,
                    own_limits, own_tails, limit, node, nodes, length,
                    tl.maximum(begin, border), end, scale,
                    LATENT, ROPE, LATENT_DIM, ROPE_DIM, PAGE_SIZE, BLOCK_N,
                )  # fmt: skip
            state_sum = tl.sum(sums, 1)
            if WHOLE:
                new_max = tl.maximum(total_max, state_max)
                kept, weight = tl.exp2(total_max - new_max), tl.exp2(state_max - new_max)
                total_sum = total_sum * kept + state_sum * weight
                total_max = new_max
                share = tl.div_rn(tl.full([BLOCK_M], 1.0, tl.float32), total_sum)
                # Registers hold one tile: a split waits in memory to be added to those before it.
                at = index[:, None] * LATENT + column[None, :]
                if end - begin == longest:
                    tl.store(out + at, (acc * share[:, None]).to(out.dtype.element_ty), mask=wanted)
                else:
                    tl.store(fresh + at, acc, mask=wanted)
                    tl.debug_barrier()  # a thread reads what others stored
                    _merge_parts(
                        part_acc, fresh, out, index, is_real, kept, weight, share,
                        begin == 0, end == longest, LATENT, LATENT_DIM,
                    )  # fmt: skip
                    tl.debug_barrier()
            else:
                place = index + tl.num_programs(1).to(tl.int64) * nodes * HEADS * current
                is_seen = is_real & (begin < limit)
                tl.store(part_max + place, state_max, mask=is_seen)
                tl.store(part_sum + place, state_sum, mask=is_seen)
                target = part_acc + place[:, None] * LATENT + column[None, :]
                tl.store(target, acc, mask=wanted & is_seen[:, None])


@triton.jit(do_not_specialize=["part_max", "part_sum", "limits", "num_pairs", "num_splits"])
def _combine_kernel(
    part_acc, part_max, part_sum, out, limits, num_pairs, num_splits,
    HEADS: tl.constexpr, LATENT: tl.constexpr, LATENT_DIM: tl.constexpr, SPLIT: tl.constexpr,
    PAIRS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Merge the splits of some heads of tokens in order of position."""
    pair, column = tl.program_id(0) * PAIRS + tl.arange(0, PAIRS), tl.arange(0, LATENT_DIM)
    is_real = pair < num_pairs
    index = pair.to(tl.int64)
    inside = is_real[:, None] & (column < LATENT)[None, :]
    overlap.begin(PDL)
    limit = tl.load(limits + index // HEADS, mask=is_real, other=0)
    longest = tl.max(limit, 0)
    total_max = tl.full([PAIRS], NOTHING_SEEN, tl.float32)
    total_sum, total = tl.zeros([PAIRS], tl.float32), tl.zeros([PAIRS, LATENT_DIM], tl.float32)
    for split in range(0, num_splits):
        begin = split_start(split, SPLIT)
        if begin < longest:
            is_seen, place = begin < limit, index + num_pairs.to(tl.int64) * split
            state_max = tl.load(part_max + place, mask=is_seen, other=NOTHING_SEEN)
            state_sum = tl.load(part_sum + place, mask=is_seen, other=0.0)
            source = part_acc + place[:, None] * LATENT + column[None, :]
            acc = tl.load(source, mask=is_seen[:, None] & inside, other=0.0)
            new_max = tl.maximum(total_max, state_max)
            kept, weight = tl.exp2(total_max - new_max), tl.exp2(state_max - new_max)
            total_sum = total_sum * kept + state_sum * weight
            total = total * kept[:, None] + acc * weight[:, None]
            total_max = new_max
    total = total * tl.div_rn(tl.full([PAIRS], 1.0, tl.float32), total_sum)[:, None]
    target = out + index[:, None] * LATENT + column[None, :]
    tl.store(target, total.to(out.dtype.element_ty), mask=inside)


def attend_uniform(
    query: torch.Tensor,  # [rows * nodes, heads, latent + rope], heads side by side
    layer: torch.Tensor,  # [pages, page_size, 1, latent + rope] contiguous
    out: torch.Tensor,  # [rows * nodes, heads, latent] contiguous
    *,
    pages: torch.Tensor,  # [rows, pages] int32
    lengths: torch.Tensor,  # [rows] int32
    limits: torch.Tensor,  # [rows * nodes] int32
    tails: torch.Tensor,  # [rows * nodes, 64] int32
    partials: torch.Tensor,  # [num_partials or more] float32
    scale: float,
    is_tree: bool,
    tiles: Tiles | None = None,
) -> None:
    """Every node over its own text, in bf16, fp16 or fp32; sums are in fp32.

    As many rows run at once as the workspace has room for. Where they fill the device, each tile
    sees its text whole; else splits run side by side.
    """
    num_rows, (num_tokens, heads, width) = lengths.shape[0], query.shape
    assert query.stride()[1:] == (width, 1), "the heads of a token lie side by side"
    nodes, keys, latent = num_tokens // num_rows, pages.shape[1] * layer.shape[1], out.shape[2]
    tiles = tiles or tiles_of(heads, latent, query.dtype)
    splits = num_splits(keys, split=tiles.split)
    packing = _packing(tiles.rows, heads=heads, nodes=nodes)
    is_whole = splits == 1 or num_rows * packing.num_tiles >= tiles.many
    per_row = nodes * (2 * heads * latent if is_whole else splits * partial_width(heads, latent))
    at_once = num_rows if splits == 1 else min(num_rows, partials.numel() // per_row)
    for first in range(0, num_rows, at_once):
        rows = slice(first, first + at_once)
        tokens = slice(first * nodes, (first + at_once) * nodes)
        count = limits[tokens].shape[0] * heads
        parts = _cut(partials, count * splits, latent, is_whole=is_whole)
        inputs = [pages[rows], lengths[rows], limits[tokens], tails[tokens]]
        _attend(
            query[tokens], layer, out[tokens], inputs, parts,
            splits, scale * LOG2_E, packing, tiles, is_tree=is_tree, is_whole=is_whole,
        )  # fmt: skip
        if not is_whole:
            _combine(parts, out[tokens], limits[tokens], splits, tiles.split)


@dataclass(frozen=True, slots=True)
class _Packing:
    """How the heads of a row's nodes share tiles."""

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
    inputs: list[torch.Tensor],  # pages, lengths, limits, tails
    parts: list[torch.Tensor],
    splits: int,
    scale: float,
    packing: _Packing,
    tiles: Tiles,
    *,
    is_tree: bool,
    is_whole: bool,
) -> None:
    num_rows, num_pages = inputs[0].shape
    heads, width = query.shape[1:]
    latent, page_size, nodes = out.shape[2], layer.shape[1], query.shape[0] // num_rows
    kernel: Any = _attend_kernel[(packing.num_tiles, num_rows, 1 if is_whole else splits)]
    kernel(
        query, layer, out, *inputs, *parts,
        query.stride(0), nodes, packing.spread, num_pages, splits, scale,
        HEADS=heads, OF_NODE=packing.of_node, LATENT=latent, ROPE=width - latent,
        LATENT_DIM=dim_tile(latent), ROPE_DIM=dim_tile(width - latent), PAGE_SIZE=page_size,
        BLOCK_M=tiles.rows, BLOCK_N=tiles.keys, SPLIT=tiles.split,
        TREE=is_tree, WHOLE=is_whole, PDL=overlap.is_on(query),
        num_warps=tiles.num_warps, num_stages=tiles.num_stages, **EXACT, **overlap.options(query),
    )  # fmt: skip


def _combine(
    parts: list[torch.Tensor], out: torch.Tensor, limits: torch.Tensor, splits: int, split: int
) -> None:
    num_tokens, heads, latent = out.shape
    kernel: Any = _combine_kernel[(triton.cdiv(num_tokens * heads, _PAIRS),)]
    kernel(
        *parts, out, limits, num_tokens * heads, splits,
        HEADS=heads, LATENT=latent, LATENT_DIM=dim_tile(latent), SPLIT=split,
        PAIRS=_PAIRS, PDL=overlap.is_on(out), num_warps=4, **EXACT, **overlap.options(out),
    )  # fmt: skip


def _cut(partials: torch.Tensor, count: int, latent: int, *, is_whole: bool) -> list[torch.Tensor]:
    """The sums of values, maxima and sums of weights of `count` heads of tokens of splits."""
    if is_whole:  # what was seen before, and a split's own; the rest stays in registers
        return [partials] * 3
    values, rest = partials[: count * latent], partials[count * latent :]
    return [values, rest[:count], rest[count : 2 * count]]
