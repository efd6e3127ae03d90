"""Root-mean-square normalisation, one program per vector, as `models/layers/rms_norm.py` says it.

Sums are in float32, and their order follows from the width alone: no row depends on the others.
"""
# Triton reads kernels as source; it has no types for them.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from typing import Any

import torch
import triton
import triton.language as tl

from outrider.ops import dependent_launch as overlap

_MOST_PAIRED = tl.constexpr(1024)  # wide: rows that other kernels normalise, too (`small.py`)
# Fused multiply-adds would make the bits of a norm depend on the kernel it is a part of.
EXACT = {"enable_fp_fusion": False}


@triton.jit
def square_sums(values):  # [rows, width] float32 -> [rows]
    """Sums of the squares of every row: of neighbours, of neighbouring sums, and so on.

    No layout changes that order. Nor do zeros to the right of a row, or a cut in its middle.
    """
    ROWS: tl.constexpr = values.shape[0]
    WIDTH: tl.constexpr = values.shape[1]
    sums = values * values
    for level in tl.static_range(0, 16):
        if WIDTH >> level == 8 and WIDTH > 8:  # so few change hands at once, not pair by pair
            sums = tl.gather(sums, tl.broadcast_to(tl.arange(0, 8)[None, :], (ROWS, 8)), 1)
        if WIDTH >> level > 1:
            sums = tl.sum(tl.reshape(sums, (ROWS, WIDTH >> level + 1, 2)), axis=2)
    return tl.reshape(sums, (ROWS,))


@triton.jit
def scaled(x, mean_square, weight, eps):
    """Elements of a float32 vector with that mean square; rounded to the weight's type between."""
    unit = (x * tl.rsqrt(mean_square + eps)).to(weight.dtype)
    return unit.to(tl.float32) * weight.to(tl.float32)


@triton.jit
def _norm_kernel(
    x,
    weight,
    out,
    row_stride,
    group_stride,
    groups,
    dim,
    eps,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    program = tl.program_id(0)
    row = (program // groups).to(tl.int64)
    group = program % groups
    columns = tl.arange(0, BLOCK)[None, :]
    inside = columns < dim
    scales = tl.load(weight + group * dim + columns, mask=inside, other=0.0)
    overlap.begin(PDL)
    source = x + row * row_stride + group * group_stride
    values = tl.load(source + columns, mask=inside, other=0.0).to(tl.float32)
    squares = square_sums(values) if BLOCK <= _MOST_PAIRED else tl.sum(values * values, axis=1)
    normed = scaled(values, tl.sum(squares) / dim, scales, eps)
    tl.store(out + program.to(tl.int64) * dim + columns, normed, mask=inside)


@triton.jit(do_not_specialize_on_alignment=["tokens"])  # any view of a plan
def _join_kernel(
    tokens,
    embedding,
    state,
    embedding_weight,
    state_weight,
    joined,
    normed_state,
    embedding_stride,
    state_stride,
    dim,
    embedding_eps,
    state_eps,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < dim
    left = joined + row * 2 * dim
    if tl.program_id(1) == 0:
        scales = tl.load(embedding_weight + columns, mask=inside, other=0.0)
        overlap.begin(PDL)
        token = tl.load(tokens + row).to(tl.int64)
        source = embedding + token * embedding_stride
        values = tl.load(source + columns, mask=inside, other=0.0).to(tl.float32)
        normed = scaled(values, tl.sum(values * values) / dim, scales, embedding_eps)
        tl.store(left + columns, normed, mask=inside)
    else:
        scales = tl.load(state_weight + columns, mask=inside, other=0.0)
        overlap.begin(PDL)
        source = state + row * state_stride
        values = tl.load(source + columns, mask=inside, other=0.0).to(tl.float32)
        normed = scaled(values, tl.sum(values * values) / dim, scales, state_eps)
        tl.store(left + dim + columns, normed, mask=inside)
        tl.store(normed_state + row * dim + columns, normed, mask=inside)


def rms_norm(
    x: torch.Tensor,  # [n, dim] or [n, groups, dim], unit stride along dim
    weight: torch.Tensor,  # [dim] or [groups, dim]
    eps: float,
) -> torch.Tensor:  # as x, contiguous
    """Every vector of unit root mean square, scaled by its weight."""
    assert x.shape[1:] == weight.shape
    assert x.stride(-1) == 1
    assert weight.is_contiguous()
    dim = x.shape[-1]
    groups = weight.numel() // dim
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    kernel: Any = _norm_kernel[(x.shape[0] * groups,)]
    kernel(
        x,
        weight,
        out,
        x.stride(0),
        x.stride(-2) if groups > 1 else 0,
        groups,
        dim,
        eps,
        PDL=overlap.is_on(x),
        **_tile(dim),
        **EXACT,
        **overlap.options(x),
    )
    return out


def join_normed(
    tokens: torch.Tensor,  # [n] int64
    embedding: torch.Tensor,  # [vocab, dim]
    state: torch.Tensor,  # [n, dim]
    *,
    weights: tuple[torch.Tensor, torch.Tensor],  # [dim] each: of the embedding, of the state
    eps: tuple[float, float],
) -> tuple[torch.Tensor, torch.Tensor]:  # [n, 2 * dim], [n, dim]
    """The normalised embeddings of tokens left of the normalised states, and the latter alone."""
    num_rows, dim = state.shape
    assert embedding.shape[1] == dim
    assert state.stride(1) == embedding.stride(1) == 1
    joined = torch.empty((num_rows, 2 * dim), dtype=state.dtype, device=state.device)
    normed_state = torch.empty((num_rows, dim), dtype=state.dtype, device=state.device)
    kernel: Any = _join_kernel[(num_rows, 2)]
    kernel(
        tokens,
        embedding,
        state,
        *weights,
        joined,
        normed_state,
        embedding.stride(0),
        state.stride(0),
        dim,
        *eps,
        PDL=overlap.is_on(state),
        **_tile(dim),
        **overlap.options(state),
    )
    return joined, normed_state


def _tile(dim: int) -> dict[str, int]:
    """How one vector is spread over threads: 8 to 32 elements each."""
    block = triton.next_power_of_2(dim)
    return {"BLOCK": block, "num_warps": 4 if block <= 1024 else 8 if block <= 4096 else 16}
