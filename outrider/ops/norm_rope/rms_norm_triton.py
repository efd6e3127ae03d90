"""RMS norm and layer norm, one program per vector: kernels of the references beside this file.

Sums are in float32, and their order depends on the width only: no row depends on the others.
"""
# Triton reads kernels as source; it has no types for them.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from typing import Any

import torch
import triton
import triton.language as tl

from outrider.ops import dependent_launch as overlap

_MOST_PAIRED = tl.constexpr(1024)  # width up to which `small_linear_triton.py` normalises, too
# With fused multiply-adds, the bits of a norm would depend on the kernel that contains it.
EXACT = {"enable_fp_fusion": False}


@triton.jit
def square_sums(values):  # [rows, width] float32 -> [rows]
    """Sums of the squares of every row, by pairs: of neighbours, of neighbouring sums, and so on.

    The order is the same in every layout, with zeros appended to a row, and in two halves.
    """
    ROWS: tl.constexpr = values.shape[0]
    WIDTH: tl.constexpr = values.shape[1]
    sums = values * values
    for level in tl.static_range(0, 16):
        if WIDTH >> level == 8 and WIDTH > 8:  # exchange the last 8 once, not pair by pair
            sums = tl.gather(sums, tl.broadcast_to(tl.arange(0, 8)[None, :], (ROWS, 8)), 1)
        if WIDTH >> level > 1:
            sums = tl.sum(tl.reshape(sums, (ROWS, WIDTH >> level + 1, 2)), axis=2)
    return tl.reshape(sums, (ROWS,))


@triton.jit
def scaled(x, mean_square, weight, eps):
    """A float32 vector of that mean square, normalised, rounded to the weight's type and scaled."""
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
    CENTRED: tl.constexpr,  # the mean is subtracted
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
    if CENTRED:
        values = tl.where(inside, values - tl.sum(values) / dim, 0.0)
    squares = square_sums(values) if BLOCK <= _MOST_PAIRED else tl.sum(values * values, axis=1)
    normed = scaled(values, tl.sum(squares) / dim, scales, eps)
    tl.store(out + program.to(tl.int64) * dim + columns, normed, mask=inside)


@triton.jit
def _square_sums_kernel(x, out, row_stride, dim, BLOCK: tl.constexpr, PDL: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    overlap.begin(PDL)
    values = tl.load(x + row * row_stride + columns, mask=columns < dim, other=0.0).to(tl.float32)
    tl.store(out + row, tl.sum(values * values))


def square_sums_triton(x: torch.Tensor) -> torch.Tensor:  # [n, dim] -> [n] float32
    """The sum of the squares of every row."""
    assert x.stride(-1) == 1
    out = torch.empty(x.shape[0], dtype=torch.float32, device=x.device)
    kernel: Any = _square_sums_kernel[(x.shape[0],)]
    kernel(
        x,
        out,
        x.stride(0),
        x.shape[1],
        PDL=overlap.is_on(x),
        **norm_tile(x.shape[1]),
        **EXACT,
        **overlap.options(x),
    )
    return out


def rms_norm_triton(
    x: torch.Tensor,  # [n, dim] or [n, groups, dim], unit stride along dim
    weight: torch.Tensor,  # [dim] or [groups, dim]
    eps: float,
) -> torch.Tensor:  # as x, contiguous
    """Every vector scaled to unit root mean square, then by its weight."""
    return _norm(x, weight, eps, is_centred=False)


def layer_norm_triton(
    x: torch.Tensor,  # [n, dim] or [n, groups, dim], unit stride along dim
    weight: torch.Tensor,  # [dim] or [groups, dim]
    eps: float,
) -> torch.Tensor:  # as x, contiguous
    """The same of vectors whose mean is subtracted first."""
    return _norm(x, weight, eps, is_centred=True)


def _norm(x: torch.Tensor, weight: torch.Tensor, eps: float, *, is_centred: bool) -> torch.Tensor:
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
        CENTRED=is_centred,
        PDL=overlap.is_on(x),
        **norm_tile(dim),
        **EXACT,
        **overlap.options(x),
    )
    return out


def norm_tile(dim: int) -> dict[str, int]:
    """The threads of one vector: 8 to 32 elements each."""
    block = triton.next_power_of_2(dim)
    return {"BLOCK": block, "num_warps": 4 if block <= 1024 else 8 if block <= 4096 else 16}
