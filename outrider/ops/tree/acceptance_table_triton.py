"""Measured chances of drafts, as in `acceptance_table.py`: one launch to read, one to count."""
# Triton reads kernels as source; it has no types for them.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from typing import Any

import torch
import triton
import triton.language as tl

from outrider.ops import dependent_launch as overlap
from outrider.ops.tree import acceptance_table as reference
from outrider.ops.tree.acceptance_table import AcceptanceTable
from outrider.ops.tree.candidates import Candidates, SelectedTree
from outrider.ops.tree.tree_order_triton import LEAST_TILE, num_warps_of

_DEPTHS, _BINS = tl.constexpr(reference.DEPTHS), tl.constexpr(reference.BINS)
_NUM_ENTRIES = tl.constexpr(reference.NUM_ENTRIES)
_PRIOR_WEIGHT = tl.constexpr(reference.PRIOR_WEIGHT)
_DECAY, _BEST_LOG = tl.constexpr(reference.DECAY), tl.constexpr(reference.BEST_LOG)
_LEAST_LOG, _SLOPE = tl.constexpr(reference.LEAST_LOG), tl.constexpr(reference.SLOPE)
_TILE = 4096  # nodes counted at a time


@triton.jit
def _of_all_depths(entry):
    """The entry of the same kind and bin that counts all depths together."""
    kind = entry // (_DEPTHS * _BINS)
    return (kind * _DEPTHS + _DEPTHS - 1) * _BINS + entry % _BINS


@triton.jit
def _mean_rate(rate, entry, tried, accepted):
    """The rate of an entry; `rate` counts like a few drafts."""
    expected = _PRIOR_WEIGHT * rate
    return (tl.load(accepted + entry) + expected) / (tl.load(tried + entry) + _PRIOR_WEIGHT)


@triton.jit
def _scale(first, tried, accepted):
    """How often drafts of a kind are accepted, over how often their drafter thinks so."""
    num_thought = tl.full(first.shape, _PRIOR_WEIGHT, tl.float32)
    num_accepted = num_thought
    for number in tl.static_range(_BINS):
        entry = _of_all_depths(first + number)
        num_thought += tl.load(tried + entry) * ((number + 0.5) / _BINS)
        num_accepted += tl.load(accepted + entry)
    return num_accepted / num_thought


@triton.jit
def _chance(thought, first, tried, accepted):
    """The measured chance of drafts whose entries begin at `first`, as in the reference."""
    place = thought * _BINS - 0.5
    below = tl.minimum(tl.maximum(tl.floor(place), 0.0), _BINS - 2.0)
    scale = _scale(first, tried, accepted)
    low, high, most = thought * 0.0, thought * 0.0, thought * 0.0
    for number in tl.static_range(_BINS):
        rate = tl.minimum(scale * ((number + 0.5) / _BINS), 1.0)
        rate = _mean_rate(rate, _of_all_depths(first + number), tried, accepted)
        most = tl.maximum(most, _mean_rate(rate, first + number, tried, accepted))
        low = tl.where(below == number, most, low)
        high = tl.where(below + 1 == number, most, high)
    between = low + (high - low) * tl.minimum(tl.maximum(place - below, 0.0), 1.0)
    return between * tl.minimum(2 * place + 1, 1.0) + _SLOPE * thought


@triton.jit(do_not_specialize=range(6, 11), do_not_specialize_on_alignment=range(6))
def _calibrate_kernel(
    scores,  # [rows, candidates], written
    parents,
    kinds,  # [rows, candidates], of any strides
    tried,
    accepted,
    entries,  # [rows, candidates], written
    candidate_stride,
    kind_row_stride,
    kind_stride,
    num_candidates,
    steps,
    CANDIDATES: tl.constexpr,
    PDL: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    number = tl.arange(0, CANDIDATES)
    inside = number < num_candidates
    base = row * candidate_stride
    overlap.begin(PDL)
    score = tl.load(scores + base + number, mask=inside, other=float("-inf"))
    parent = tl.load(parents + base + number, mask=inside, other=-1)
    kind = tl.load(kinds + row * kind_row_stride + number * kind_stride, mask=inside, other=0)
    above, is_first = tl.maximum(parent, 0).to(tl.int32), parent < 0
    is_real = score > float("-inf")
    value = score - tl.where(is_first, 0.0, tl.gather(score, above, axis=0))
    value = tl.where(is_real, tl.minimum(tl.maximum(value, _LEAST_LOG), 0.0), _LEAST_LOG)
    thought = tl.exp(value)
    bins = tl.minimum((thought * _BINS).to(tl.int32), _BINS - 1)
    depth = tl.zeros([CANDIDATES], tl.int32)
    for _ in range(steps - 1):  # each pass reaches one level deeper
        depth = tl.where(is_first, 0, tl.gather(depth, above, axis=0) + 1)
    first = (kind.to(tl.int32) * _DEPTHS + tl.minimum(depth, _DEPTHS - 2)) * _BINS
    entry = (first + bins).to(tl.int64)
    tl.store(entries + row * num_candidates + number, entry, mask=inside)
    own = tl.log(_chance(thought, first, tried, accepted))
    own = tl.minimum(tl.maximum(own, _LEAST_LOG), _BEST_LOG)
    path = own
    for _ in range(steps - 1):
        path = own + tl.where(is_first, 0.0, tl.gather(path, above, axis=0))
    tl.store(scores + base + number, tl.where(is_real, path, float("-inf")), mask=inside)


def calibrate_triton_(
    candidates: Candidates, kinds: torch.Tensor, table: AcceptanceTable, *, steps: int
) -> torch.Tensor:  # [rows, width]
    """`calibrate_` in one launch."""
    scores, parents = candidates.scores, candidates.parents
    assert scores.stride() == parents.stride(), "candidates share a layout"
    rows, width = scores.shape
    entries = kinds.new_empty(rows, width)
    kernel: Any = _calibrate_kernel[(rows,)]
    kernel(
        scores,
        parents,
        kinds,
        table.tried,
        table.accepted,
        entries,
        scores.stride(0),
        kinds.stride(0),
        kinds.stride(1),
        width,
        steps,
        CANDIDATES=max(LEAST_TILE, triton.next_power_of_2(width)),
        PDL=overlap.is_on(scores),
        num_warps=num_warps_of(width),
        **overlap.options(scores),
    )
    return entries


@triton.jit(do_not_specialize=range(6, 10), do_not_specialize_on_alignment=range(6))
def _count_kernel(
    entries,  # [rows, width]
    numbers,  # [rows, nodes]
    parents,
    path,  # [rows, most_emitted] contiguous
    tried,  # written, as the next
    accepted,
    num_nodes,
    nodes,
    width,
    most_emitted,
    TILE: tl.constexpr,
    COUNTS: tl.constexpr,
    PDL: tl.constexpr,
):
    place, index = tl.arange(0, TILE), tl.arange(0, COUNTS)
    num_tried, num_accepted = tl.zeros([COUNTS], tl.int32), tl.zeros([COUNTS], tl.int32)
    overlap.begin(PDL)
    for begin in range(0, num_nodes, TILE):
        item = begin + place
        inside = item < num_nodes
        row, node = (item // nodes).to(tl.int64), (item % nodes).to(tl.int64)
        number = tl.load(numbers + item, mask=inside, other=-1)
        entry = tl.load(entries + row * width + number, mask=number >= 0, other=0).to(tl.int32)
        parent = tl.maximum(tl.load(parents + item, mask=inside, other=0), 0)
        bits = tl.zeros([TILE], tl.int64)  # of the accepted nodes of the row
        for depth in range(most_emitted):
            step = tl.load(path + row * most_emitted + depth, mask=inside, other=0)
            bits = bits | (tl.full([TILE], 1, tl.int64) << step)
        is_tried = (number >= 0) & (((bits >> parent) & 1) > 0)
        is_accepted = is_tried & (((bits >> node) & 1) > 0)
        pooled = _of_all_depths(entry)
        # What is not counted goes to an entry past the last.
        num_tried += tl.histogram(tl.where(is_tried, entry, _NUM_ENTRIES), COUNTS)
        num_tried += tl.histogram(tl.where(is_tried, pooled, _NUM_ENTRIES), COUNTS)
        num_accepted += tl.histogram(tl.where(is_accepted, entry, _NUM_ENTRIES), COUNTS)
        num_accepted += tl.histogram(tl.where(is_accepted, pooled, _NUM_ENTRIES), COUNTS)
    is_entry = index < _NUM_ENTRIES
    old = tl.load(tried + index, mask=is_entry, other=0.0)
    tl.store(tried + index, old * _DECAY + num_tried.to(tl.float32), mask=is_entry)
    old = tl.load(accepted + index, mask=is_entry, other=0.0)
    tl.store(accepted + index, old * _DECAY + num_accepted.to(tl.float32), mask=is_entry)


def count_accepted_triton_(
    table: AcceptanceTable, entries: torch.Tensor, selected: SelectedTree, path: torch.Tensor
) -> None:
    """`count_accepted_` in one launch of one program."""
    numbers = selected.numbers
    num_nodes = numbers.numel()
    kernel: Any = _count_kernel[(1,)]
    kernel(
        entries,
        numbers,
        selected.tree.parents,
        path,
        table.tried,
        table.accepted,
        num_nodes,
        numbers.shape[1],
        entries.shape[1],
        path.shape[1],
        TILE=min(_TILE, max(128, triton.next_power_of_2(num_nodes))),
        COUNTS=triton.next_power_of_2(reference.NUM_ENTRIES + 1),
        PDL=overlap.is_on(entries),
        num_warps=8,
        **overlap.options(entries),
    )
