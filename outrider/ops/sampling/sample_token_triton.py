"""The last part of sampling, as in `sample_token.py`: filter, noise and argmax in one pass.

A program finds the best score of a part of one row, a second kernel the best of all parts. The bits
are those of the reference: no fused multiply-adds.
"""
# Triton reads kernels as source; it has no types for them.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from typing import Any

import torch
import triton
import triton.language as tl

from outrider.ops import dependent_launch as overlap
from outrider.ops.sampling.gumbel_noise_triton import gumbel_of
from outrider.ops.sampling.sample_token import NOT_FINITE, NOTHING_LEFT, SampledTokens
from outrider.ops.sampling.sampling_columns import NoNoise, RowNoise
from outrider.ops.sampling.sortable_floats_triton import LOWEST_KEY, id_of, key_of, key_value

_BLOCK = 1024
_NOT_FINITE, _NOTHING_LEFT = tl.constexpr(NOT_FINITE), tl.constexpr(NOTHING_LEFT)
_PROGRAMS = 2048  # about 16 per multiprocessor: enough loads in flight to saturate memory

# Slices of larger tensors: their alignment does not compile the kernel again.
_ANYWHERE = ["floors", "seeds", "temperatures", "rows", "positions"]


@triton.jit(do_not_specialize=["span", "first"], do_not_specialize_on_alignment=_ANYWHERE)
def _best_kernel(
    scores,
    floors,
    seeds,
    temperatures,
    rows,
    positions,
    seed_stride,
    temperature_stride,
    keys,
    width,
    stride,
    span,
    first,
    IS_NOISY: tl.constexpr,
    IS_FILTERED: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    place = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    overlap.begin(PDL)
    if IS_NOISY:
        row = tl.load(rows + place)
        seed = tl.load(seeds + row * seed_stride)
        temperature = tl.load(temperatures + row * temperature_stride)
        position = tl.load(positions + place)
    if IS_FILTERED:
        floor = tl.load(floors + place)
    best = tl.full([BLOCK], LOWEST_KEY, tl.int64)
    for block in range(span):
        columns = (part * span + block) * BLOCK + tl.arange(0, BLOCK)
        # Columns past the end are minus infinity under the highest ids: they never win a tie.
        z = tl.load(scores + place * stride + columns, mask=columns < width, other=float("-inf"))
        z = z.to(tl.float32)
        if IS_FILTERED:
            z = tl.where(z < floor, float("-inf"), z)
        if IS_NOISY:
            z += gumbel_of(first + columns, seed, position) * temperature
        best = tl.maximum(best, key_of(z, first + columns))
    tl.store(keys + place * tl.num_programs(1) + part, tl.max(best, 0))


@triton.jit(do_not_specialize=["num_parts"], do_not_specialize_on_alignment=["faults"])
def _merge_kernel(keys, tokens, faults, num_parts, PARTS: tl.constexpr, PDL: tl.constexpr):
    place = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, PARTS)
    overlap.begin(PDL)
    key = tl.load(keys + place * num_parts + part, mask=part < num_parts, other=LOWEST_KEY)
    best = tl.max(key, 0)
    tl.store(tokens + place, id_of(best))
    score = key_value(best)
    fault = tl.where(tl.abs(score) < float("inf"), 0, _NOT_FINITE)
    fault = tl.where(score == float("-inf"), _NOTHING_LEFT, fault)
    tl.store(faults + place, fault.to(tl.int64))


def sample_token_triton(
    scores: torch.Tensor,  # [n, vocab] float32, bfloat16 or float16, unit stride along vocab
    noise: RowNoise | NoNoise,
    floors: torch.Tensor,  # [n] float32, scores below are out; [0] if nothing is filtered
) -> SampledTokens:
    """`sample_token` in two launches."""
    num_rows, vocab = scores.shape
    tokens, faults = torch.empty((2, num_rows), dtype=torch.int64, device=scores.device).unbind(0)
    if not num_rows:
        return SampledTokens(tokens=tokens, faults=faults)
    keys = _keys_of_parts(scores, noise, floors, first=0)
    merge: Any = _merge_kernel[(num_rows,)]
    # Parts of any split: one compilation per vocabulary.
    parts = triton.next_power_of_2(triton.cdiv(vocab, _BLOCK))
    overlapping = {"PDL": overlap.is_on(scores), **overlap.options(scores)}
    merge(keys, tokens, faults, keys.shape[1], PARTS=parts, num_warps=1, **overlapping)
    return SampledTokens(tokens=tokens, faults=faults)


def best_keys_triton(
    scores: torch.Tensor,  # [n, width] as above
    noise: RowNoise | NoNoise,
    first: int,  # token of the first column
) -> torch.Tensor:  # [n] int64
    """`best_keys`: the same kernel, and the largest of its parts."""
    if not scores.shape[0]:
        return torch.empty(0, dtype=torch.int64, device=scores.device)
    no_floors = torch.empty(0, device=scores.device)
    return _keys_of_parts(scores, noise, no_floors, first=first).amax(1)


def _keys_of_parts(
    scores: torch.Tensor,  # [n, width], not empty
    noise: RowNoise | NoNoise,
    floors: torch.Tensor,  # [n] or [0]
    *,
    first: int,
) -> torch.Tensor:  # [n, parts] int64
    """The best score of every part of a row, and its token."""
    num_rows, width = scores.shape
    num_blocks = triton.cdiv(width, _BLOCK)
    # How a row is split never changes its maximum, so the split may depend on the batch.
    span = triton.cdiv(num_blocks, triton.cdiv(_PROGRAMS, num_rows))
    num_parts = triton.cdiv(num_blocks, span)
    keys = torch.empty((num_rows, num_parts), dtype=torch.int64, device=scores.device)
    overlapping = {"PDL": overlap.is_on(scores), **overlap.options(scores)}
    best: Any = _best_kernel[(num_rows, num_parts)]
    best(
        scores,
        floors,
        *noise.arguments(),
        keys,
        width,
        scores.stride(0),
        span,
        first,
        IS_NOISY=isinstance(noise, RowNoise),
        IS_FILTERED=floors.shape[0] > 0,
        BLOCK=_BLOCK,
        enable_fp_fusion=False,
        **overlapping,
    )
    return keys
