"""Latent attention of uniform rows over paged latents: decode, chains, trees, in Triton.

As `kernels/attention.py` in all but what is stored: one vector per token, [latent | rotated key],
is the key of every head, and its first part the value. Heads and nodes are packed into the tile.
The results of splits are merged in pairs, then the pairs in pairs, and so on by their numbers,
by whoever computed them or by a launch of its own: that changes no bit.
"""
# Triton reads kernels as source; it has no types for them.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import torch
import triton
import triton.language as tl

from outrider.kernels import overlap
from outrider.kernels.attention import (
    EXACT,
    LOG2_E,
    MOST_PARTIALS,
    NOTHING_SEEN,
    dim_tile,
    partial_width,
    path_slots,
)
from outrider.kernels.paths import MAX_NODES

SHORT_SPLITS = 16  # splits of the size that tiles name; those after them are twice as long

_FEW_HEADS = 32
_CORES = 132  # of an H200, each with room for one tile
_MOST_SLICES = 256  # that one program merges
_MERGED_COLUMNS = 128  # of them

# What a program costs besides its keys, in keys: measured in time, and of no consequence for bits.
_START_COST = 96
_MERGE_COST = 96
_PARTIAL_COST = 160

_MAX_NODES = tl.constexpr(MAX_NODES)
_SHORT_SPLITS = tl.constexpr(SHORT_SPLITS)
_HELD_LEVELS = tl.constexpr(5)  # a thread holds a column of up to 32 slices in registers


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


def tiles_of(heads: int, latent: int, dtype: torch.dtype) -> Tiles:
    """The tiles of a model. A split of many heads leaves the bytes of hundreds of latents."""
    split = 512 if heads > _FEW_HEADS else 256
    if dtype == torch.float32:  # no tensor cores: operands are held in registers
        return Tiles(rows=16, keys=16 if latent > 128 else 32, split=split)
    return Tiles(split=split)


def num_splits(keys: int, *, split: int) -> int:
    """Splits that cover so many positions."""
    count = -(-keys // split)
    return count if count <= SHORT_SPLITS else (count + SHORT_SPLITS + 1) // 2


@triton.jit
def split_start(index, SPLIT: tl.constexpr):
    """First position of a split."""
    return (index + tl.maximum(index - _SHORT_SPLITS, 0)) * SPLIT


@triton.jit
def _history_slots(position, pages, PAGE_SIZE: tl.constexpr):
    """Where in the pool the latents of these positions lie."""
    at = position.to(tl.uint32)  # whose division is a shift
    page = tl.load(pages + at // PAGE_SIZE)
    return page * PAGE_SIZE + (at % PAGE_SIZE).to(tl.int32)


@triton.jit
def _fetch(
    stored, slots, LATENT: tl.constexpr, ROPE: tl.constexpr, LATENT_DIM: tl.constexpr,
    ROPE_DIM: tl.constexpr,
):  # fmt: skip
    """A block of latents [keys, lanes] and of the rotated keys beside them."""
    lane, turn = tl.arange(0, LATENT_DIM), tl.arange(0, ROPE_DIM)
    source = stored + slots.to(tl.int64)[:, None] * (LATENT + ROPE)
    at, turned_at = source + lane[None, :], source + LATENT + turn[None, :]
    # Unmasked where it can be: the addresses of a block are much of the work that is no product.
    if LATENT == LATENT_DIM:
        latent = tl.load(at)
    else:
        latent = tl.load(at, mask=(lane < LATENT)[None, :], other=0.0)
    if ROPE == ROPE_DIM:
        turned = tl.load(turned_at)
    else:
        turned = tl.load(turned_at, mask=(turn < ROPE)[None, :], other=0.0)
    return latent, turned


@triton.jit
def _see(
    state_max, sums, acc, latent_query, turned_query, latent, latent_key, turned_key, is_visible,
    needs_mask, scale,
):  # fmt: skip
    """One block of latents enters the running softmax, which is in base 2."""
    turned_score = tl.dot(turned_query, turned_key, input_precision="ieee")
    latent_score = tl.dot(latent_query, latent_key, input_precision="ieee")
    # A plain addition would become a chain of two products, and a mask without a branch one of
    # all three: the compiler then gives the scores of a tile to every warp group once more.
    score = tl.fma(turned_score, 1.0, latent_score)
    if needs_mask:
        score = tl.where(is_visible, score, float("-inf"))
    new_max = tl.maximum(state_max, tl.max(score, 1) * scale)
    weight = tl.exp2(tl.fma(score, scale, -new_max[:, None]))
    kept = tl.exp2(state_max - new_max)
    sums = sums * kept[:, None] + weight
    acc = tl.dot(weight.to(latent.dtype), latent, acc * kept[:, None], input_precision="ieee")
    return new_max, sums, acc


@triton.jit
def see_history(
    state_max, sums, acc, latent_query, turned_query, stored, pages, limit, shortest, begin, end,
    scale,
    LATENT: tl.constexpr, ROPE: tl.constexpr, LATENT_DIM: tl.constexpr, ROPE_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr, BLOCK_N: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Latents in [begin, end) that lie at their own positions, the same for all lanes.

    A lane sees those below its limit; none has a limit below `shortest`.
    """
    offset, last = tl.arange(0, BLOCK_N), tl.maximum(end - 1, 0)
    # Past the end the last latent is read again: it is there, and nobody sees it.
    slots = _history_slots(tl.minimum(begin + offset, last), pages, PAGE_SIZE)
    for start in tl.range(begin, end, BLOCK_N, num_stages=STAGES):
        position = start + offset
        # Looked up one block ahead, so that the loads of latents wait for nobody.
        ahead = _history_slots(tl.minimum(position + BLOCK_N, last), pages, PAGE_SIZE)
        latent, turned = _fetch(stored, slots, LATENT, ROPE, LATENT_DIM, ROPE_DIM)
        latent_key, turned_key = tl.trans(latent), tl.trans(turned)
        # Always so. What stands under a condition is scheduled after the loads of the next block,
        # which are then under way during all of it; else they would wait for its products.
        if start < end:
            state_max, sums, acc = _see(
                state_max, sums, acc, latent_query, turned_query, latent, latent_key, turned_key,
                position[None, :] < limit[:, None], start + BLOCK_N > shortest, scale,
            )  # fmt: skip
        slots = ahead
    return state_max, sums, acc


@triton.jit
def _see_paths(
    state_max, sums, acc, latent_query, turned_query, stored, pages, limits, tails, limit, node,
    nodes, length, begin, end, scale,
    LATENT: tl.constexpr, ROPE: tl.constexpr, LATENT_DIM: tl.constexpr, ROPE_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr, BLOCK_N: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Latents in [begin, end) along the path of each node of the tile, seen by that node alone."""
    first, last = tl.min(node, 0), tl.minimum(tl.max(node, 0), nodes - 1)
    blocks = tl.cdiv(tl.maximum(end - begin, 0), BLOCK_N)
    divisor, steps = tl.maximum(blocks, 1), (last - first + 1) * blocks
    anywhere = tl.load(pages).to(tl.int64) * PAGE_SIZE  # a text begins there
    for step in tl.range(0, steps, num_stages=STAGES):
        slots = path_slots(
            step, divisor, first, begin, end, length, limits, tails, pages, PAGE_SIZE, BLOCK_N
        )  # fmt: skip
        slots = tl.where(slots >= 0, slots, anywhere)
        position = begin + step % divisor * BLOCK_N + tl.arange(0, BLOCK_N)
        is_own = node == first + step // divisor
        latent, turned = _fetch(stored, slots, LATENT, ROPE, LATENT_DIM, ROPE_DIM)
        latent_key, turned_key = tl.trans(latent), tl.trans(turned)
        if step < steps:  # as above
            is_visible = (position[None, :] < limit[:, None]) & is_own[:, None]
            state_max, sums, acc = _see(
                state_max, sums, acc, latent_query, turned_query, latent, latent_key, turned_key,
                is_visible, step >= 0, scale,
            )  # fmt: skip
    return state_max, sums, acc


@triton.jit
def _halves(acc, BLOCK_M: tl.constexpr, LATENT_DIM: tl.constexpr):
    """A tile as two, each with every other quarter of the columns, and their columns.

    Two warp groups hold half the columns each, so no thread gives anything away here.
    """
    QUARTER: tl.constexpr = LATENT_DIM // 4
    parts = tl.permute(tl.reshape(acc, [BLOCK_M, 2, 2, QUARTER]), (0, 1, 3, 2))
    left, right = tl.split(parts)
    left, right = (
        tl.reshape(left, [BLOCK_M, 2 * QUARTER]),
        tl.reshape(right, [BLOCK_M, 2 * QUARTER]),
    )
    place = tl.arange(0, 2 * QUARTER)
    column = place // QUARTER * (2 * QUARTER) + place % QUARTER
    return left, right, column, column + QUARTER


@triton.jit
def _merge_half(half, column, earlier, place, is_real, kept, weight, LATENT: tl.constexpr):
    """Add what was seen before, which lies in memory."""
    inside = is_real[:, None] & (column < LATENT)[None, :]
    before = tl.load(earlier + place[:, None] * LATENT + column[None, :], mask=inside, other=0.0)
    return before * kept[:, None] + half * weight[:, None]


@triton.jit
def _store_half(half, column, target, place, is_real, LATENT: tl.constexpr):
    inside = is_real[:, None] & (column < LATENT)[None, :]
    at = target + place[:, None] * LATENT + column[None, :]
    tl.store(at, half.to(target.dtype.element_ty), mask=inside)


@triton.jit
def _keep_split(
    state_max, state_sum, acc, out, part_acc, part_max, part_sum, index, is_real, first_place,
    stride, number, levels, is_last,
    BLOCK_M: tl.constexpr, LATENT: tl.constexpr, LATENT_DIM: tl.constexpr, DIRECT: tl.constexpr,
):  # fmt: skip
    """Merge a split with those before it that it completes; keep the result for those after it.

    Of the splits of a program, number n completes the 2, 4, ... that end with it: as many as the
    binary n ends in ones. The last completes all. What 2^l splits have seen waits at place l.
    """
    left, right, left_column, right_column = _halves(acc, BLOCK_M, LATENT_DIM)
    due = tl.where(is_last, number, (number ^ (number + 1)) >> 1)
    level = 0
    for bit in range(0, levels):
        if (due >> bit) & 1 == 1:
            place = first_place + bit * stride
            earlier_max = tl.load(part_max + place, mask=is_real, other=NOTHING_SEEN)
            earlier_sum = tl.load(part_sum + place, mask=is_real, other=0.0)
            new_max = tl.maximum(earlier_max, state_max)
            kept, weight = tl.exp2(earlier_max - new_max), tl.exp2(state_max - new_max)
            state_sum = earlier_sum * kept + state_sum * weight
            state_max = new_max
            left = _merge_half(left, left_column, part_acc, place, is_real, kept, weight, LATENT)
            right = _merge_half(right, right_column, part_acc, place, is_real, kept, weight, LATENT)
            level += 1
    if is_last & DIRECT:
        share = tl.div_rn(tl.full([BLOCK_M], 1.0, tl.float32), state_sum)[:, None]
        _store_half(left * share, left_column, out, index, is_real, LATENT)
        _store_half(right * share, right_column, out, index, is_real, LATENT)
    else:
        place = first_place + tl.where(is_last, 0, level) * stride
        tl.debug_barrier()  # a place may be written whose old values other threads still read
        tl.store(part_max + place, state_max, mask=is_real)
        tl.store(part_sum + place, state_sum, mask=is_real)
        _store_half(left, left_column, part_acc, place, is_real, LATENT)
        _store_half(right, right_column, part_acc, place, is_real, LATENT)
        tl.debug_barrier()  # a thread reads what others stored


@triton.jit(
    do_not_specialize=[
        "pages", "lengths", "limits", "tails", "part_max", "part_sum",
        "nodes", "spread", "num_pages", "num_splits", "span", "levels",
    ]
)  # fmt: skip
def _attend_kernel(
    query, layer, out, pages, lengths, limits, tails, part_acc, part_max, part_sum,
    query_stride, nodes, spread, num_pages, num_splits, span, levels, scale,
    HEADS: tl.constexpr, OF_NODE: tl.constexpr, LATENT: tl.constexpr, ROPE: tl.constexpr,
    LATENT_DIM: tl.constexpr, ROPE_DIM: tl.constexpr, PAGE_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SPLIT: tl.constexpr, STAGES: tl.constexpr,
    TREE: tl.constexpr, DIRECT: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """A tile has OF_NODE heads of each of `spread` nodes and sees `span` splits, 2^levels."""
    HEAD_TILES: tl.constexpr = (HEADS + OF_NODE - 1) // OF_NODE
    tile, row = tl.program_id(0), tl.program_id(1)
    slice_ = tl.num_programs(2) - 1 - tl.program_id(2)  # the long ones start first
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
    stride = tl.num_programs(1).to(tl.int64) * nodes * HEADS
    first_place = index + stride * slice_ * tl.maximum(levels, 1)
    overlap.begin(PDL)
    limit, length = tl.load(limits + token, mask=is_real, other=0), tl.load(lengths + row)
    latent_query = tl.load(source + column[None, :], mask=wanted, other=0.0)
    turned_query = tl.load(source + LATENT + turn[None, :], mask=is_turned, other=0.0)
    longest = tl.max(limit, 0)
    shortest = tl.min(tl.where(is_real, limit, longest), 0)
    start = slice_ * span
    stop = tl.minimum(start + span, num_splits)
    for split in range(start, stop):
        begin = split_start(split, SPLIT)
        end = tl.minimum(split_start(split + 1, SPLIT), longest)
        if begin < end:
            # Blocks that reach past the history are seen along each node's own path.
            border = length // BLOCK_N * BLOCK_N if TREE else end
            state_max, sums, acc = see_history(
                tl.full([BLOCK_M], NOTHING_SEEN, tl.float32),
                tl.zeros([BLOCK_M, BLOCK_N], tl.float32),
                tl.zeros([BLOCK_M, LATENT_DIM], tl.float32), latent_query, turned_query, layer,
                own_pages, limit, shortest, begin, tl.minimum(border, end), scale,
                LATENT, ROPE, LATENT_DIM, ROPE_DIM, PAGE_SIZE, BLOCK_N, STAGES,
            )  # fmt: skip
            if TREE:
                state_max, sums, acc = _see_paths(
                    state_max, sums, acc, latent_query, turned_query, layer, own_pages,
                    own_limits, own_tails, limit, node, nodes, length,
                    tl.maximum(begin, border), end, scale,
                    LATENT, ROPE, LATENT_DIM, ROPE_DIM, PAGE_SIZE, BLOCK_N, STAGES,
                )  # fmt: skip
            _keep_split(
                state_max, tl.sum(sums, 1), acc, out, part_acc, part_max, part_sum, index, is_real,
                first_place, stride, split - start, levels, (end == longest) | (split + 1 == stop),
                BLOCK_M, LATENT, LATENT_DIM, DIRECT,
            )  # fmt: skip


@triton.jit
def _merge(left_max, left_sum, left, right_max, right_sum, right):
    """Slices [slices], [slices, columns] and those that follow each of them."""
    new_max = tl.maximum(left_max, right_max)
    kept, weight = tl.exp2(left_max - new_max), tl.exp2(right_max - new_max)
    new_sum = left_sum * kept + right_sum * weight
    return new_max, new_sum, left * kept[:, None] + right * weight[:, None]


@triton.jit
def _merge_pairs(state_max, state_sum, acc, PAIRS: tl.constexpr, COLUMNS: tl.constexpr):
    """Each two neighbours of 2 * PAIRS slices become one."""
    left_max, right_max = tl.split(tl.reshape(state_max, [PAIRS, 2]))
    left_sum, right_sum = tl.split(tl.reshape(state_sum, [PAIRS, 2]))
    left, right = tl.split(tl.permute(tl.reshape(acc, [PAIRS, 2, COLUMNS]), (0, 2, 1)))
    return _merge(left_max, left_sum, left, right_max, right_sum, right)


@triton.jit
def _merge_slices(
    part_acc, part_max, part_sum, first, stride, pair, column, limit, num_slices, span,
    LATENT: tl.constexpr, SPLIT: tl.constexpr, LEVELS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """What 2^LEVELS slices from the first on have seen: [1], [1], [1, columns]."""
    HALF: tl.constexpr = (1 << LEVELS) // 2
    if LEVELS > _HELD_LEVELS:
        left_max, left_sum, left = _merge_slices(
            part_acc, part_max, part_sum, first, stride, pair, column, limit, num_slices, span,
            LATENT, SPLIT, LEVELS - 1, COLUMNS,
        )  # fmt: skip
        right_max, right_sum, right = _merge_slices(
            part_acc, part_max, part_sum, first + HALF, stride, pair, column, limit, num_slices,
            span, LATENT, SPLIT, LEVELS - 1, COLUMNS,
        )  # fmt: skip
        return _merge(left_max, left_sum, left, right_max, right_sum, right)
    number = first + tl.arange(0, 2 * HALF)
    is_seen = (split_start(number * span, SPLIT) < limit) & (number < num_slices)
    place = number * stride + pair
    state_max = tl.load(part_max + place, mask=is_seen, other=NOTHING_SEEN)
    state_sum = tl.load(part_sum + place, mask=is_seen, other=0.0)
    inside = is_seen[:, None] & (column < LATENT)[None, :]
    acc = tl.load(part_acc + place[:, None] * LATENT + column[None, :], mask=inside, other=0.0)
    for level in tl.static_range(LEVELS):
        state_max, state_sum, acc = _merge_pairs(
            state_max, state_sum, acc, HALF >> level, COLUMNS
        )  # fmt: skip
    return state_max, state_sum, acc


@triton.jit(do_not_specialize=["part_max", "part_sum", "limits", "num_slices", "span", "depth"])
def _combine_kernel(
    part_acc, part_max, part_sum, out, limits, num_slices, span, depth,
    HEADS: tl.constexpr, LATENT: tl.constexpr, SPLIT: tl.constexpr, LEVELS: tl.constexpr,
    COLUMNS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Merge the slices of some columns of a head of a token, as a program merges its splits."""
    pair, column = tl.program_id(0), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    overlap.begin(PDL)
    limit, stride = tl.load(limits + pair // HEADS), tl.num_programs(0).to(tl.int64) * depth
    _, state_sum, acc = _merge_slices(
        part_acc, part_max, part_sum, 0, stride, pair, column, limit, num_slices, span,
        LATENT, SPLIT, LEVELS, COLUMNS,
    )  # fmt: skip
    acc = acc * tl.div_rn(tl.full([1], 1.0, tl.float32), state_sum)[:, None]
    target = out + pair.to(tl.int64) * LATENT + column
    tl.store(target, tl.reshape(acc, [COLUMNS]).to(out.dtype.element_ty), mask=column < LATENT)


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
    span: int | None = None,
) -> None:
    """Every node over its own text, in bf16, fp16 or fp32; sums are in fp32.

    As many rows run at once as the workspace has room for, and a program sees as many splits
    (`span`, a power of 2) as leave the device no idle cores. Neither changes a bit.
    """
    num_rows, (num_tokens, heads, width) = lengths.shape[0], query.shape
    assert query.stride()[1:] == (width, 1), "the heads of a token lie side by side"
    nodes, keys, latent = num_tokens // num_rows, pages.shape[1] * layer.shape[1], out.shape[2]
    tiles = tiles or tiles_of(heads, latent, query.dtype)
    packing = _packing(tiles.rows, heads=heads, nodes=nodes)
    room = partials.numel() // (nodes * partial_width(heads, latent))  # partial results of a row
    slices = _slices(keys, tiles.split, rows=num_rows, tiles=packing.num_tiles, room=room)
    if span is not None:
        slices = next(way for way in _ways(keys, tiles.split, room=room) if way.span == span)
    at_once = _at_once(num_rows, slices, room)
    for first in range(0, num_rows, at_once):
        rows = slice(first, first + at_once)
        tokens = slice(first * nodes, (first + at_once) * nodes)
        parts = _cut(partials, limits[tokens].shape[0] * heads * slices.num_partials, latent)
        inputs = [pages[rows], lengths[rows], limits[tokens], tails[tokens]]
        _attend(
            query[tokens], layer, out[tokens], inputs, parts,
            slices, scale * LOG2_E, packing, tiles, is_tree=is_tree,
        )  # fmt: skip
        if slices.count > 1:
            _combine(parts, out[tokens], limits[tokens], slices, tiles.split)


def num_partials(*, rows: int, nodes: int, keys: int, heads: int, latent: int) -> int:
    """Floats of the workspace for so many rows over so many keys.

    It never exceeds 256 MiB, or what a single row needs.
    """
    splits = num_splits(keys, split=tiles_of(heads, latent, torch.bfloat16).split)
    if splits == 1:
        return 0
    per_row = nodes * splits * partial_width(heads, latent)
    return min(rows * per_row, max(MOST_PARTIALS, per_row))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Slices:
    """How programs share the splits of a text."""

    splits: int
    span: int  # splits of a slice, which one program sees
    count: int

    @property
    def levels(self) -> int:
        """Halvings of a slice: partial results that wait while it is seen."""
        return self.span.bit_length() - 1

    @property
    def num_partials(self) -> int:
        """Of a text."""
        return 0 if self.splits == 1 else self.count * max(self.levels, 1)


@cache
def _slices(keys: int, split: int, *, rows: int, tiles: int, room: int) -> _Slices:
    """Slices for rows of so many tiles each, such that the last core is idle soonest."""
    ways = _ways(keys, split, room=room)

    def cost(way: _Slices) -> float:
        at_once = _at_once(rows, way, room)
        return -(-rows // at_once) * _cost(way, keys, split, tiles=at_once * tiles)

    return min(ways, key=cost)


def _ways(keys: int, split: int, *, room: int) -> list[_Slices]:
    """All that the workspace has room for."""
    splits = num_splits(keys, split=split)
    spans = [1 << level for level in range((splits - 1).bit_length() + 1)]
    ways = [_Slices(splits=splits, span=span, count=-(-splits // span)) for span in spans]
    return [way for way in ways if way.num_partials <= room and way.count <= _MOST_SLICES]


def _cost(slices: _Slices, keys: int, split: int, *, tiles: int) -> float:
    """Time of a launch of so many tiles, in keys that a core sees one after another."""
    borders = [
        min(keys, (index + max(index - SHORT_SPLITS, 0)) * split)
        for index in range(0, (slices.count + 1) * slices.span, slices.span)
    ]
    extra = _START_COST + (_PARTIAL_COST if slices.count > 1 else 0)
    extra += _MERGE_COST * (min(slices.span, slices.splits) - 1)
    costs = [end - begin + extra for begin, end in pairwise(borders)]
    turns = -(-tiles * costs.count(max(costs)) // _CORES)  # short ones fill the gaps
    return max(turns * max(costs), tiles * sum(costs) / _CORES)


def _at_once(rows: int, slices: _Slices, room: int) -> int:
    """Rows of a launch: as many as the workspace has room for, evenly."""
    if slices.num_partials == 0:
        return rows
    launches = -(-rows // (room // slices.num_partials))
    return -(-rows // launches)


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
    slices: _Slices,
    scale: float,
    packing: _Packing,
    tiles: Tiles,
    *,
    is_tree: bool,
) -> None:
    num_rows, num_pages = inputs[0].shape
    heads, width = query.shape[1:]
    latent, page_size, nodes = out.shape[2], layer.shape[1], query.shape[0] // num_rows
    kernel: Any = _attend_kernel[(packing.num_tiles, num_rows, slices.count)]
    kernel(
        query, layer, out, *inputs, *parts, query.stride(0), nodes, packing.spread, num_pages,
        slices.splits, slices.span, slices.levels, scale,
        HEADS=heads, OF_NODE=packing.of_node, LATENT=latent, ROPE=width - latent,
        LATENT_DIM=dim_tile(latent), ROPE_DIM=dim_tile(width - latent), PAGE_SIZE=page_size,
        BLOCK_M=tiles.rows, BLOCK_N=tiles.keys, SPLIT=tiles.split, STAGES=tiles.num_stages,
        TREE=is_tree, DIRECT=slices.count == 1, PDL=overlap.is_on(query),
        num_warps=tiles.num_warps, num_stages=tiles.num_stages, **EXACT, **overlap.options(query),
    )  # fmt: skip


def _combine(
    parts: list[torch.Tensor],
    out: torch.Tensor,
    limits: torch.Tensor,
    slices: _Slices,
    split: int,
) -> None:
    num_tokens, heads, latent = out.shape
    levels = (slices.count - 1).bit_length()
    columns = min(dim_tile(latent), _MERGED_COLUMNS)
    kernel: Any = _combine_kernel[(num_tokens * heads, triton.cdiv(latent, columns))]
    kernel(
        *parts, out, limits, slices.count, slices.span, max(slices.levels, 1),
        HEADS=heads, LATENT=latent, SPLIT=split, LEVELS=levels, COLUMNS=columns,
        PDL=overlap.is_on(out), num_warps=triton.cdiv(columns, 32), **EXACT,
        **overlap.options(out),
    )  # fmt: skip


def _cut(partials: torch.Tensor, count: int, latent: int) -> list[torch.Tensor]:
    """The sums of values, maxima and sums of weights of `count` partial results of heads."""
    values, rest = partials[: count * latent], partials[count * latent :]
    return [values, rest[:count], rest[count : 2 * count]]
