"""The score below which top-k, top-p or min-p rules a token out, one per row, without a sort.

All sums are of integers, so their order does not matter and the result is exactly that of the
reference in `top_k_top_p.py`. Four kernels: the best score of a row; number and mass of the tokens
above each of eight pivots; a list of the tokens above the pivot just below the threshold, if they
are few; then one program per row finds the threshold in the list.
"""
# Triton reads kernels as source; it has no types for them.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from outrider.ops import dependent_launch as overlap
from outrider.ops.sampling.sampling_columns import FilterTables
from outrider.ops.sampling.sortable_floats_triton import value_of
from outrider.ops.sampling.thresholds_triton import (
    PIVOTS,
    first_window,
    gather_from,
    pivots_below,
    search_from,
    weigh_above,
)

_BLOCK = 1024
_TILE = 2048  # of the search
_ROOM = 4096  # candidates a row may have
_PROGRAMS = 2048
_NUM_PIVOTS = 8
# A window of the order this wide holds at most one value of the type.
_GRAINS = {torch.float32: 1, torch.bfloat16: 2**16, torch.float16: 2**13}
# Slices of larger tensors: their alignment does not compile a kernel again.
_WEIGHED = ["temperatures", "top_ks", "rows"]
_SEARCHED = [*_WEIGHED, "top_ps"]


@triton.jit
def _own_temperature(temperatures, offset):
    """The temperature of the filters: 1 for a greedy row."""
    temperature = tl.load(temperatures + offset)
    return tl.where(temperature > 0, temperature, 1.0)


@triton.jit
def _best_of(peaks, num_parts, PARTS: tl.constexpr):
    """The best score of a row, from those of its parts."""
    parts = tl.arange(0, PARTS)
    return tl.max(tl.load(peaks + parts, mask=parts < num_parts, other=float("-inf")), 0)


@triton.jit(do_not_specialize=["span"])
def _peak_kernel(scores, peaks, width, stride, span, BLOCK: tl.constexpr, PDL: tl.constexpr):
    place = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    overlap.begin(PDL)
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    for block in range(span):
        columns = (part * span + block) * BLOCK + tl.arange(0, BLOCK)
        z = tl.load(scores + place * stride + columns, mask=columns < width, other=float("-inf"))
        best = tl.maximum(best, z.to(tl.float32))
    tl.store(peaks + place * tl.num_programs(1) + part, tl.max(best, 0))


@triton.jit(do_not_specialize=["span", "num_parts"], do_not_specialize_on_alignment=_WEIGHED)
def _weigh_kernel(
    scores,
    peaks,
    temperatures,
    top_ks,
    rows,
    counts,
    weights,
    width,
    stride,
    real_stride,
    top_k_stride,
    span,
    num_parts,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    place = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    overlap.begin(PDL)
    row = tl.load(rows + place)
    by_mass = tl.load(top_ks + row * top_k_stride) >= width
    temperature = _own_temperature(temperatures, row * real_stride)
    best = _best_of(peaks + place * num_parts, num_parts, PARTS)
    pivots = pivots_below(best, tl.where(by_mass, temperature, 1.0))
    first = part * span * BLOCK
    end = tl.minimum(first + span * BLOCK, width)
    values = scores + place * stride
    number, weight = weigh_above(values, first, end, pivots, best, temperature, by_mass, BLOCK)
    at = (place * num_parts + part) * PIVOTS + tl.arange(0, PIVOTS)
    tl.store(counts + at, number)
    tl.store(weights + at, weight)


@triton.jit(do_not_specialize=["span", "num_parts"], do_not_specialize_on_alignment=_SEARCHED)
def _gather_kernel(
    scores,
    candidates,
    peaks,
    counts,
    weights,
    temperatures,
    top_ps,
    top_ks,
    rows,
    width,
    stride,
    real_stride,
    top_k_stride,
    span,
    num_parts,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
    ROOM: tl.constexpr,
    PDL: tl.constexpr,
):
    place = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    parts = tl.arange(0, PARTS)
    overlap.begin(PDL)
    row = tl.load(rows + place)
    temperature = _own_temperature(temperatures, row * real_stride)
    top_p = tl.load(top_ps + row * real_stride)
    top_k = tl.load(top_ks + row * top_k_stride)
    best = _best_of(peaks + place * num_parts, num_parts, PARTS)
    own = counts + place * num_parts * PIVOTS
    low, _high, _target, count, chosen = first_window(
        own,
        weights + place * num_parts * PIVOTS,
        num_parts,
        width,
        top_k,
        top_p,
        best,
        temperature,
        PARTS,
    )
    is_searched = (top_k < width) | (top_p < 1.0)
    mine = tl.load(own + part * PIVOTS + chosen)
    if is_searched & (count <= ROOM) & (mine > 0):
        before = tl.sum(tl.load(own + parts * PIVOTS + chosen, mask=parts < part, other=0), 0)
        first = part * span * BLOCK
        end = tl.minimum(first + span * BLOCK, width)
        at = candidates + place * ROOM + before
        gather_from(scores + place * stride, first, end, low, at, BLOCK)


@triton.jit(do_not_specialize=["num_parts"], do_not_specialize_on_alignment=_SEARCHED)
def _floor_kernel(
    scores,
    candidates,
    peaks,
    counts,
    weights,
    temperatures,
    top_ps,
    log_min_ps,
    top_ks,
    rows,
    floors,
    width,
    stride,
    real_stride,
    top_k_stride,
    num_parts,
    PARTS: tl.constexpr,
    TILE: tl.constexpr,
    ROOM: tl.constexpr,
    GRAIN: tl.constexpr,
    PDL: tl.constexpr,
):
    place = tl.program_id(0).to(tl.int64)
    overlap.begin(PDL)
    row = tl.load(rows + place)
    temperature = _own_temperature(temperatures, row * real_stride)
    top_p = tl.load(top_ps + row * real_stride)
    top_k = tl.load(top_ks + row * top_k_stride)
    best = _best_of(peaks + place * num_parts, num_parts, PARTS)
    floor = best + temperature * tl.load(log_min_ps + row * real_stride)
    if (top_k < width) | (top_p < 1.0):
        sums = place * num_parts * PIVOTS
        low, high, target, count, _chosen = first_window(
            counts + sums, weights + sums, num_parts, width, top_k, top_p, best, temperature, PARTS
        )
        place_in_order = search_from(
            scores + place * stride,
            candidates + place * ROOM,
            width,
            low,
            high,
            target,
            count,
            top_k,
            top_p,
            best,
            temperature,
            TILE,
            ROOM,
            GRAIN,
        )
        floor = tl.maximum(floor, value_of(place_in_order))
    tl.store(floors + place, floor)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """Sums over each part of each row; a part is `span` blocks."""

    span: int
    peaks: torch.Tensor  # [n, parts] float32, the best score
    counts: torch.Tensor  # [n, parts, pivots] int32, how many lie above each pivot
    weights: torch.Tensor  # [n, parts, pivots] int64


def filter_floors_triton(
    scores: torch.Tensor,  # [n, vocab] float32, bfloat16 or float16, unit stride along vocab
    tables: FilterTables,
    rows: torch.Tensor,  # [n] int64
) -> torch.Tensor:  # [n] float32
    """`filter_floors` in four launches."""
    num_rows = scores.shape[0]
    floors = torch.empty(num_rows, dtype=torch.float32, device=scores.device)
    candidates = torch.empty((num_rows, _ROOM), dtype=scores.dtype, device=scores.device)
    if num_rows:
        parts = _weigh_parts(scores, tables, rows)
        _gather(scores, tables, rows, parts, candidates)
        _search_floors(scores, tables, rows, parts, candidates, floors)
    return floors


def _weigh_parts(scores: torch.Tensor, tables: FilterTables, rows: torch.Tensor) -> _Parts:
    num_rows, vocab = scores.shape
    num_blocks = triton.cdiv(vocab, _BLOCK)
    # The split of a row never changes its sums, so it may depend on the batch.
    span = triton.cdiv(num_blocks, triton.cdiv(_PROGRAMS, num_rows))
    grid = (num_rows, triton.cdiv(num_blocks, span))
    parts = _Parts(
        span=span,
        peaks=torch.empty(grid, dtype=torch.float32, device=scores.device),
        counts=torch.empty((*grid, _NUM_PIVOTS), dtype=torch.int32, device=scores.device),
        weights=torch.empty((*grid, _NUM_PIVOTS), dtype=torch.int64, device=scores.device),
    )
    peak: Any = _peak_kernel[grid]
    peak(scores, parts.peaks, *_sizes(scores), span, BLOCK=_BLOCK, **_shared(scores))
    weigh: Any = _weigh_kernel[grid]
    weigh(
        scores,
        parts.peaks,
        tables.temperature,
        tables.top_k,
        rows,
        parts.counts,
        parts.weights,
        *_sizes(scores),
        *_strides(tables),
        span,
        grid[1],
        PARTS=_most_parts(vocab),
        BLOCK=_BLOCK,
        **_shared(scores),
    )
    return parts


def _gather(
    scores: torch.Tensor,  # [n, vocab]
    tables: FilterTables,
    rows: torch.Tensor,  # [n]
    parts: _Parts,
    candidates: torch.Tensor,  # [n, room] written where a row's candidates fit
) -> None:
    gather: Any = _gather_kernel[tuple(parts.peaks.shape)]
    gather(
        scores,
        candidates,
        parts.peaks,
        parts.counts,
        parts.weights,
        tables.temperature,
        tables.top_p,
        tables.top_k,
        rows,
        *_sizes(scores),
        *_strides(tables),
        parts.span,
        parts.peaks.shape[1],
        PARTS=_most_parts(scores.shape[1]),
        BLOCK=_BLOCK,
        ROOM=_ROOM,
        **_shared(scores),
    )


def _search_floors(
    scores: torch.Tensor,  # [n, vocab]
    tables: FilterTables,
    rows: torch.Tensor,  # [n]
    parts: _Parts,
    candidates: torch.Tensor,  # [n, room]
    floors: torch.Tensor,  # [n] written
) -> None:
    search: Any = _floor_kernel[(scores.shape[0],)]
    search(
        scores,
        candidates,
        parts.peaks,
        parts.counts,
        parts.weights,
        tables.temperature,
        tables.top_p,
        tables.log_min_p,
        tables.top_k,
        rows,
        floors,
        *_sizes(scores),
        *_strides(tables),
        parts.peaks.shape[1],
        PARTS=_most_parts(scores.shape[1]),
        TILE=_TILE,
        ROOM=_ROOM,
        GRAIN=_GRAINS[scores.dtype],
        num_warps=16,
        **_shared(scores),
    )


def _sizes(scores: torch.Tensor) -> tuple[int, int]:
    return scores.shape[1], scores.stride(0)


def _strides(tables: FilterTables) -> tuple[int, int]:
    return tables.temperature.stride(0), tables.top_k.stride(0)


def _most_parts(vocab: int) -> int:
    """Room for the parts of any split, so that batches of all sizes share one compilation."""
    return int(triton.next_power_of_2(triton.cdiv(vocab, _BLOCK)))


def _shared(scores: torch.Tensor) -> dict[str, Any]:
    """Options of all launches."""
    is_on = overlap.is_on(scores)
    return {"enable_fp_fusion": False, "PDL": is_on, **overlap.options(scores)}
