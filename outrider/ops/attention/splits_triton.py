"""How texts are cut into splits at fixed absolute positions, and how their results are merged.

Results are always merged in order of position, by the tile that read all splits or by a second
launch. So the bits of a node depend on its text only.
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
from outrider.ops.attention.softmax_blocks_triton import LOG2_E, oldest_seen, score_factors
from outrider.ops.attention.tree_paths_triton import DecodeTexts

SPLIT = 256  # positions of a split
# The first 32 splits have 256 positions each: [0, 8192). Then every doubling of the length adds 8
# splits: [8192, 16384) has 8 of 1024, [16384, 32768) has 8 of 2048, and so on.
EQUAL_SPLITS = 32
MOST_PARTIALS = 1 << 26  # floats of the workspace

# Fused multiply-adds could differ between two compilations of one kernel; the bits must not.
EXACT = {"enable_fp_fusion": False}

_PAIRS = 4  # (token, head) pairs that one program merges
_AHEAD = 4  # splits whose results are loaded ahead
_EQUAL_SPLITS = tl.constexpr(EQUAL_SPLITS)
_LONGEST = tl.constexpr(1 << 30)  # no text is longer
_MOST_SPLITS = tl.constexpr(128)  # of any text: 32 million positions
# Below every score, and finite: a block without visible keys leaves the running softmax unchanged.
NOTHING_SEEN = tl.constexpr(-1.0e30)
_LOG2_E = tl.constexpr(LOG2_E)


@dataclass(frozen=True, slots=True, kw_only=True)
class Partials:
    """Results of single splits, float32: the softmax over the keys of one split."""

    values: torch.Tensor  # [count * head_dim] sums of weighted values
    maxima: torch.Tensor  # [count] of scores
    weights: torch.Tensor  # [count] sums of weights


def num_splits(keys: int, *, split: int = SPLIT) -> int:
    """Splits that cover so many positions: 32 of `split` positions, then 8 per doubling."""
    count = -(-keys // split)
    if count <= EQUAL_SPLITS:
        return count
    octave = 0
    while EQUAL_SPLITS * split << octave + 1 < keys:
        octave += 1
    size = EQUAL_SPLITS * split // 8 << octave
    return EQUAL_SPLITS + 8 * octave - (-(keys - (EQUAL_SPLITS * split << octave)) // size)


def dim_tile(head_dim: int) -> int:
    """Columns of a tile of heads: tensor cores take at least 16."""
    return max(16, int(triton.next_power_of_2(head_dim)))


def num_partials(*, rows: int, nodes: int, keys: int, width: int) -> int:
    """Floats of the workspace for so many rows over so many keys; `width` is `partial_width`.

    It never exceeds 256 MiB, or what a single row needs.
    """
    splits = num_splits(keys)
    if splits == 1:
        return 0
    return min(rows * nodes * splits * width, max(MOST_PARTIALS, nodes * splits * width))


def partial_width(heads: int, head_dim: int) -> int:
    """Floats of the workspace that one split of one token needs."""
    return heads * (head_dim + 2)


@triton.jit
def split_start(index, SPLIT: tl.constexpr):
    """First position of a split."""
    far = tl.maximum(index - _EQUAL_SPLITS, 0)
    eighths = (8 + far % 8) << (far // 8)
    return tl.where(index < _EQUAL_SPLITS, index * SPLIT, eighths * (_EQUAL_SPLITS * SPLIT // 8))


@triton.jit
def splits_before(end, SPLIT: tl.constexpr):
    """How many splits begin before a position."""
    starts = split_start(tl.arange(0, _MOST_SPLITS), SPLIT)
    return tl.sum((starts < end).to(tl.int32), 0)


@triton.jit
def first_split(limit, WINDOW: tl.constexpr, SPLIT: tl.constexpr):  # limit [rows]
    """The first split that some row sees. Rows with limit 0 see nothing."""
    first = 0
    if WINDOW != 0:
        shortest = tl.min(tl.where(limit > 0, limit, _LONGEST), 0)
        first = splits_before(tl.maximum(oldest_seen(shortest, WINDOW), 0) + 1, SPLIT) - 1
    return first


@triton.jit
def sees_split(split, limit, WINDOW: tl.constexpr, SPLIT: tl.constexpr):
    """Whether each row sees keys of a split."""
    is_seen = split_start(split, SPLIT) < limit
    if WINDOW != 0:
        is_seen = is_seen & (split_start(split + 1, SPLIT) > oldest_seen(limit, WINDOW))
    return is_seen


@triton.jit
def begin_softmax(sinks, head, is_real, ROWS: tl.constexpr, HAS_SINKS: tl.constexpr):
    """The largest score and the sum of weights before the first split: those of a head's sink.

    A sink has no value. Its score is not scaled, and the softmax is in base 2.
    """
    total_max = tl.full([ROWS], NOTHING_SEEN, tl.float32)
    total_sum = tl.zeros([ROWS], tl.float32)
    if HAS_SINKS:
        total_max = tl.load(sinks + head, mask=is_real, other=0.0) * _LOG2_E
        total_sum = tl.full([ROWS], 1.0, tl.float32)
    return total_max, total_sum


@triton.jit
def merge_softmax(total_max, total_sum, total, running_max, running_sum, acc):
    """Merge the result of a split with the result of the splits before it."""
    new_max = tl.maximum(total_max, running_max)
    rescale, weight = tl.exp2(total_max - new_max), tl.exp2(running_max - new_max)
    total_sum = total_sum * rescale + running_sum * weight
    return new_max, total_sum, total * rescale[:, None] + acc * weight[:, None]


@triton.jit
def mean(total, total_sum, ROWS: tl.constexpr):
    """The weighted mean of values, from the sum of weighted values and the sum of weights."""
    return total * tl.div_rn(tl.full([ROWS], 1.0, tl.float32), total_sum)[:, None]


@triton.jit(do_not_specialize=["part_max", "part_sum", "queries", "limits", "sinks", "num_pairs"])
def _combine_kernel(
    part_acc, part_max, part_sum, out, queries, limits, sinks, num_pairs,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr, SPLIT: tl.constexpr,
    WINDOW: tl.constexpr, HAS_SINKS: tl.constexpr, PAIRS: tl.constexpr, AHEAD: tl.constexpr,
    RAGGED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Merge the splits of some (node, head) pairs in order of position."""
    pair, column = tl.program_id(0) * PAIRS + tl.arange(0, PAIRS), tl.arange(0, DIM)
    is_real, index = pair < num_pairs, pair.to(tl.int64)
    goal = index
    overlap.begin(PDL)
    if RAGGED:
        query = tl.load(queries + index // HEADS, mask=is_real, other=-1).to(tl.int64)
        is_real = is_real & (query >= 0)
        goal = query * HEADS + index % HEADS
    inside = is_real[:, None] & (column < HEAD_DIM)[None, :]
    limit = tl.load(limits + index // HEADS, mask=is_real, other=0)
    total_max, total_sum = begin_softmax(sinks, pair % HEADS, is_real, PAIRS, HAS_SINKS)
    total = tl.zeros([PAIRS, DIM], tl.float32)
    first = first_split(limit, WINDOW, SPLIT)
    for split in tl.range(first, splits_before(tl.max(limit, 0), SPLIT), num_stages=AHEAD):
        is_seen = sees_split(split, limit, WINDOW, SPLIT)
        place = index + num_pairs.to(tl.int64) * split
        running_max = tl.load(part_max + place, mask=is_seen, other=NOTHING_SEEN)
        running_sum = tl.load(part_sum + place, mask=is_seen, other=0.0)
        source = part_acc + place[:, None] * HEAD_DIM + column[None, :]
        acc = tl.load(source, mask=is_seen[:, None] & inside, other=0.0)
        total_max, total_sum, total = merge_softmax(
            total_max, total_sum, total, running_max, running_sum, acc
        )
    target = out + goal[:, None] * HEAD_DIM + column[None, :]
    tl.store(target, mean(total, total_sum, PAIRS).to(out.dtype.element_ty), mask=inside)


def combine(
    parts: Partials,
    out: torch.Tensor,
    texts: DecodeTexts,
    split: int,
    rule: AttentionRule,
) -> None:
    """Write the merged splits of every head of every node that runs."""
    num_nodes, (heads, head_dim) = texts.limits.shape[0], out.shape[1:]
    kernel: Any = _combine_kernel[(triton.cdiv(num_nodes * heads, _PAIRS),)]
    kernel(
        parts.values, parts.maxima, parts.weights, out, texts.queries, texts.limits,
        sinks_argument(rule, out), num_nodes * heads,
        HEADS=heads, HEAD_DIM=head_dim, DIM=dim_tile(head_dim), SPLIT=split,
        WINDOW=score_factors(rule).window, HAS_SINKS=rule.has_sinks,
        PAIRS=_PAIRS, AHEAD=_AHEAD, RAGGED=texts.is_ragged, PDL=overlap.is_on(out),
        num_warps=2, **EXACT, **overlap.options(out),
    )  # fmt: skip


def sinks_argument(rule: AttentionRule, unused: torch.Tensor) -> torch.Tensor:
    """The sinks as kernels take them: a pointer that is not read where there are none."""
    return unused if rule.sinks is None else rule.sinks


def cut(workspace: torch.Tensor, count: int, head_dim: int) -> Partials:
    """The workspace as `count` partial results."""
    values, rest = workspace[: count * head_dim], workspace[count * head_dim :]
    return Partials(values=values, maxima=rest[:count], weights=rest[count : 2 * count])
