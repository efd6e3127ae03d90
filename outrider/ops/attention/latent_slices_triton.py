"""How programs share the splits of a text over latents, and how their results are merged.

Results of splits are merged in pairs, then the pairs in pairs, and so on by their numbers. A
program that reads 2^l splits, from a multiple of 2^l on, merges them itself; a second launch merges
the rest. The operations and their operands are the same either way.
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

from outrider.ops import dependent_launch as overlap
from outrider.ops.attention.splits_triton import (
    EXACT,
    NOTHING_SEEN,
    Partials,
    dim_tile,
    merge_softmax,
)
from outrider.ops.attention.tree_paths_triton import DecodeTexts

SHORT_SPLITS = 16  # splits of the size of `LatentTiles.split`; later ones are twice as long

_CORES = 132  # of an H200, each with room for one tile
_MOST_SLICES = 256  # that one program merges
_MERGED_COLUMNS = 128  # columns that one program merges

# What a program costs besides its keys, counted in keys. It changes time, not results.
_START_COST = 96
_MERGE_COST = 96
_PARTIAL_COST = 160

_SHORT_SPLITS = tl.constexpr(SHORT_SPLITS)
_HELD_LEVELS = tl.constexpr(5)  # a thread holds a column of up to 2^5 slices in registers


def num_latent_splits(keys: int, *, split: int) -> int:
    """Splits that cover so many positions."""
    count = -(-keys // split)
    return count if count <= SHORT_SPLITS else (count + SHORT_SPLITS + 1) // 2


@triton.jit
def latent_split_start(index, size):
    """First position of a split."""
    return (index + tl.maximum(index - _SHORT_SPLITS, 0)) * size


@dataclass(frozen=True, slots=True, kw_only=True)
class Slices:
    """How programs share the splits of a text."""

    splits: int
    span: int  # splits of a slice, which one program reads
    count: int

    @property
    def levels(self) -> int:
        """log2 of the span: how often the splits of a slice are merged in pairs."""
        return self.span.bit_length() - 1

    @property
    def depth(self) -> int:
        """Partial results of a slice: those of its levels while it is read, and its own."""
        return self.levels + 1

    @property
    def num_partials(self) -> int:
        """Partial results of a text."""
        return 0 if self.splits == 1 else self.count * self.depth


@cache
def choose_slices(keys: int, split: int, *, rows: int, tiles: int, room: int) -> Slices:
    """The slices that finish soonest, for rows of `tiles` tiles each."""
    ways = ways_to_slice(keys, split, room=room)

    def cost(way: Slices) -> float:
        at_once = rows_at_once(rows, way, room)
        return -(-rows // at_once) * _cost(way, keys, split, tiles=at_once * tiles)

    return min(ways, key=cost)


def ways_to_slice(keys: int, split: int, *, room: int) -> list[Slices]:
    """All slicings that the workspace has room for."""
    splits = num_latent_splits(keys, split=split)
    spans = [1 << level for level in range((splits - 1).bit_length() + 1)]
    ways = [Slices(splits=splits, span=span, count=-(-splits // span)) for span in spans]
    return [way for way in ways if way.num_partials <= room and way.count <= _MOST_SLICES]


def _cost(slices: Slices, keys: int, split: int, *, tiles: int) -> float:
    """Time of a launch of so many tiles, in keys that a core reads one after another."""
    borders = [
        min(keys, (index + max(index - SHORT_SPLITS, 0)) * split)
        for index in range(0, (slices.count + 1) * slices.span, slices.span)
    ]
    extra = _START_COST + (_PARTIAL_COST if slices.count > 1 else 0)
    extra += _MERGE_COST * (min(slices.span, slices.splits) - 1)
    costs = [end - begin + extra for begin, end in pairwise(borders)]
    waves = -(-tiles * costs.count(max(costs)) // _CORES)  # short slices fill the gaps
    return max(waves * max(costs), tiles * sum(costs) / _CORES)


def rows_at_once(rows: int, slices: Slices, room: int) -> int:
    """Rows per launch: at most as many as the workspace has room for, equal in all launches."""
    if slices.num_partials == 0:
        return rows
    launches = -(-rows // (room // slices.num_partials))
    return -(-rows // launches)


@triton.jit
def _halves(acc, BLOCK_M: tl.constexpr, LATENT_DIM: tl.constexpr):
    """A tile as two halves, each with every other quarter of the columns, and their columns.

    Each of two warp groups holds half of the columns, so this exchanges no data between threads.
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
def _merge_half(half, column, earlier, place, is_real, rescale, weight, LATENT: tl.constexpr):
    """Merge a half with an earlier partial result, which lies in memory."""
    inside = is_real[:, None] & (column < LATENT)[None, :]
    before = tl.load(earlier + place[:, None] * LATENT + column[None, :], mask=inside, other=0.0)
    return before * rescale[:, None] + half * weight[:, None]


@triton.jit
def _store_half(half, column, target, place, is_real, LATENT: tl.constexpr):
    inside = is_real[:, None] & (column < LATENT)[None, :]
    at = target + place[:, None] * LATENT + column[None, :]
    tl.store(at, half.to(target.dtype.element_ty), mask=inside)


@triton.jit
def keep_split(
    running_max, running_sum, acc, out, part_acc, part_max, part_sum, goal, is_real, first_place,
    stride, number, levels, is_last,
    BLOCK_M: tl.constexpr, LATENT: tl.constexpr, LATENT_DIM: tl.constexpr, DIRECT: tl.constexpr,
):  # fmt: skip
    """Merge a split with the earlier partial results that it completes, and store the result.

    Of the splits of a program, split n completes groups of 2, 4, ... splits that end with it: one
    group for each trailing one bit of n. The last split completes all. The result of 2^l splits is
    stored at place l, and the result of the program at the place after them.
    """
    left, right, left_column, right_column = _halves(acc, BLOCK_M, LATENT_DIM)
    due = tl.where(is_last, number, (number ^ (number + 1)) >> 1)
    level = tl.where(is_last, levels, 0)
    for bit in range(0, levels):
        level += tl.where(is_last, 0, (due >> bit) & 1)
    place = first_place + level * stride
    # Through memory, so that maxima and sums get the layout of the loaded partial results.
    tl.store(part_max + place, running_max, mask=is_real)
    tl.store(part_sum + place, running_sum, mask=is_real)
    tl.debug_barrier()
    own_max = tl.load(part_max + place, mask=is_real, other=NOTHING_SEEN)
    own_sum = tl.load(part_sum + place, mask=is_real, other=0.0)
    for bit in range(0, levels):
        if (due >> bit) & 1 == 1:
            earlier = first_place + bit * stride
            earlier_max = tl.load(part_max + earlier, mask=is_real, other=NOTHING_SEEN)
            earlier_sum = tl.load(part_sum + earlier, mask=is_real, other=0.0)
            new_max = tl.maximum(earlier_max, own_max)
            rescale, weight = tl.exp2(earlier_max - new_max), tl.exp2(own_max - new_max)
            own_sum = earlier_sum * rescale + own_sum * weight
            own_max = new_max
            left = _merge_half(
                left, left_column, part_acc, earlier, is_real, rescale, weight, LATENT
            )
            right = _merge_half(
                right, right_column, part_acc, earlier, is_real, rescale, weight, LATENT
            )  # fmt: skip
    if is_last & DIRECT:
        share = tl.div_rn(tl.full([BLOCK_M], 1.0, tl.float32), own_sum)[:, None]
        _store_half(left * share, left_column, out, goal, is_real, LATENT)
        _store_half(right * share, right_column, out, goal, is_real, LATENT)
    else:
        tl.debug_barrier()
        tl.store(part_max + place, own_max, mask=is_real)
        tl.store(part_sum + place, own_sum, mask=is_real)
        _store_half(left, left_column, part_acc, place, is_real, LATENT)
        _store_half(right, right_column, part_acc, place, is_real, LATENT)
        tl.debug_barrier()  # threads read what other threads stored


@triton.jit
def _merge_pairs(running_max, running_sum, acc, PAIRS: tl.constexpr, COLUMNS: tl.constexpr):
    """Merge each two neighbours of 2 * PAIRS slices."""
    left_max, right_max = tl.split(tl.reshape(running_max, [PAIRS, 2]))
    left_sum, right_sum = tl.split(tl.reshape(running_sum, [PAIRS, 2]))
    left, right = tl.split(tl.permute(tl.reshape(acc, [PAIRS, 2, COLUMNS]), (0, 2, 1)))
    return merge_softmax(left_max, left_sum, left, right_max, right_sum, right)


@triton.jit
def _merge_slices(
    part_acc, part_max, part_sum, first, stride, place, column, limit, num_slices, span, split,
    LATENT: tl.constexpr, LEVELS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The merged result of 2^LEVELS slices from `first` on: [1], [1], [1, columns]."""
    HALF: tl.constexpr = (1 << LEVELS) // 2
    if LEVELS > _HELD_LEVELS:
        left_max, left_sum, left = _merge_slices(
            part_acc, part_max, part_sum, first, stride, place, column, limit, num_slices, span,
            split, LATENT, LEVELS - 1, COLUMNS,
        )  # fmt: skip
        right_max, right_sum, right = _merge_slices(
            part_acc, part_max, part_sum, first + HALF, stride, place, column, limit, num_slices,
            span, split, LATENT, LEVELS - 1, COLUMNS,
        )  # fmt: skip
        return merge_softmax(left_max, left_sum, left, right_max, right_sum, right)
    number = first + tl.arange(0, 2 * HALF)
    is_seen = (latent_split_start(number * span, split) < limit) & (number < num_slices)
    at = place + number * stride
    running_max = tl.load(part_max + at, mask=is_seen, other=NOTHING_SEEN)
    running_sum = tl.load(part_sum + at, mask=is_seen, other=0.0)
    inside = is_seen[:, None] & (column < LATENT)[None, :]
    acc = tl.load(part_acc + at[:, None] * LATENT + column[None, :], mask=inside, other=0.0)
    for level in tl.static_range(LEVELS):
        running_max, running_sum, acc = _merge_pairs(
            running_max, running_sum, acc, HALF >> level, COLUMNS
        )  # fmt: skip
    return running_max, running_sum, acc


@triton.jit(
    do_not_specialize=[
        "part_max", "part_sum", "queries", "limits", "heads", "num_slices", "span", "depth",
        "split",
    ]
)  # fmt: skip
def _combine_kernel(
    part_acc, part_max, part_sum, out, queries, limits, heads, num_slices, span, depth, split,
    LATENT: tl.constexpr, LEVELS: tl.constexpr, COLUMNS: tl.constexpr, RAGGED: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Merge the slices of some columns of one head of a node, as a program merges its splits."""
    pair, column = tl.program_id(0), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    overlap.begin(PDL)
    goal, is_wanted = pair.to(tl.int64), column < LATENT
    if RAGGED:
        query = tl.load(queries + pair // heads).to(tl.int64)
        goal = query * heads + pair % heads
        is_wanted = is_wanted & (query >= 0)
    limit, pairs = tl.load(limits + pair // heads), tl.num_programs(0).to(tl.int64)
    place = pair + pairs * (depth - 1)  # of the first slice's result
    _, running_sum, acc = _merge_slices(
        part_acc, part_max, part_sum, 0, pairs * depth, place, column, limit, num_slices, span,
        split, LATENT, LEVELS, COLUMNS,
    )  # fmt: skip
    acc = acc * tl.div_rn(tl.full([1], 1.0, tl.float32), running_sum)[:, None]
    target = out + goal * LATENT + column
    tl.store(target, tl.reshape(acc, [COLUMNS]).to(out.dtype.element_ty), mask=is_wanted)


def combine_slices(
    parts: Partials,
    out: torch.Tensor,
    texts: DecodeTexts,
    slices: Slices,
    split: int,
) -> None:
    """Write the merged slices of every head of every node that runs."""
    num_nodes, (heads, latent) = texts.limits.shape[0], out.shape[1:]
    levels = (slices.count - 1).bit_length()
    columns = min(dim_tile(latent), _MERGED_COLUMNS)
    kernel: Any = _combine_kernel[(num_nodes * heads, triton.cdiv(latent, columns))]
    kernel(
        parts.values, parts.maxima, parts.weights, out, texts.queries, texts.limits, heads,
        slices.count, slices.span, slices.depth, split,
        LATENT=latent, LEVELS=levels, COLUMNS=columns, RAGGED=texts.is_ragged,
        PDL=overlap.is_on(out), num_warps=triton.cdiv(columns, 32), **EXACT,
        **overlap.options(out),
    )  # fmt: skip
