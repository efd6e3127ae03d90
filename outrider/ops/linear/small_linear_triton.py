"""Linear layers of short rows, a whole row at once, fused with the norm before and what follows.

Small weights are bound by latency, not by bandwidth, so a program loads its weights before it waits
for the kernel that computes its input. The bits are those of `rms_norm_triton.py` and
`linear_triton.py`: sums over k in the same order, squares in pairs.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from outrider.ops import dependent_launch as overlap
from outrider.ops.linear.linear_limits import LEAST_SMALL_INPUTS
from outrider.ops.linear.swiglu_triton import swiglu_of
from outrider.ops.norm_rope.rms_norm import Norm
from outrider.ops.norm_rope.rms_norm_triton import EXACT, scaled, square_sums


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallTile:
    """Sizes of the tile of one block of threads. The defaults are the fastest on an H200."""

    columns: int = 32  # of the weight; half of them are outputs when gated or rotated
    rows: int = 16
    num_warps: int = 8


CHOSEN = SmallTile()


@triton.jit
def load_weights(
    weight,  # [.., K]
    source,  # [COLUMNS] which rows of it
    is_column,  # [COLUMNS]
    scales,  # [K] of the norm
    K,
    LEFT: tl.constexpr,  # the first inputs of a row, a power of two of them,
    RIGHT: tl.constexpr,  # and room for the others, or 0
    HAS_NORM: tl.constexpr,
    PDL: tl.constexpr,
):  # [COLUMNS, LEFT], [COLUMNS, RIGHT] of the weight and [1, LEFT], [1, RIGHT] of the scales
    """Weights and scales, which do not depend on the kernel before; then wait for that kernel.

    Without a right part or a norm, the values returned for it are unused. The next kernel may start
    at once, to load its own weights.
    """
    overlap.release(PDL)
    left = tl.arange(0, LEFT)[None, :]
    at = weight + source.to(tl.int64)[:, None] * K
    w_left = tl.load(at + left, mask=is_column[:, None], other=0.0)
    scales_left = w_left
    if HAS_NORM:
        scales_left = tl.load(scales + left)
    w_right, scales_right = w_left, scales_left
    if RIGHT:
        right = LEFT + tl.arange(0, RIGHT)[None, :]
        w_right = tl.load(at + right, mask=is_column[:, None] & (right < K), other=0.0)
        if HAS_NORM:
            scales_right = tl.load(scales + right, mask=right < K, other=0.0)
    overlap.wait(PDL)
    return w_left, w_right, scales_left, scales_right


@triton.jit
def load_rows(
    x,  # [num_rows, K]
    row,  # [ROWS]
    num_rows,
    K,
    x_stride,
    IS_SINGLE: tl.constexpr,  # there is one row
    LEFT: tl.constexpr,
    RIGHT: tl.constexpr,
):  # [1 or ROWS, LEFT], [1 or ROWS, RIGHT]
    left = tl.arange(0, LEFT)[None, :]
    if IS_SINGLE:
        x_left = tl.load(x + left)
    else:
        is_row = (row < num_rows)[:, None]
        at = x + row.to(tl.int64)[:, None] * x_stride
        x_left = tl.load(at + left, mask=is_row, other=0.0)
    x_right = x_left
    if RIGHT:
        right = LEFT + tl.arange(0, RIGHT)[None, :]
        if IS_SINGLE:
            x_right = tl.load(x + right, mask=right < K, other=0.0)
        else:
            x_right = tl.load(at + right, mask=is_row & (right < K), other=0.0)
    return x_left, x_right


@triton.jit
def normed(x_left, x_right, scales_left, scales_right, K, eps, RIGHT: tl.constexpr):
    """Rows of unit root mean square, scaled and rounded, with the bits of `rms_norm_triton.py`."""
    wide_left, wide_right = x_left.to(tl.float32), x_right.to(tl.float32)
    squares = square_sums(wide_left)
    if RIGHT:
        squares += square_sums(wide_right)
    if squares.shape[0] == 1:
        mean = tl.sum(squares, 0) / K
    else:  # the gather changes the layout; in that of the sums, rows would be held many times over
        mean = tl.gather(squares, tl.arange(0, squares.shape[0]), 0)[:, None] / K
    if RIGHT:
        x_right = scaled(wide_right, mean, scales_right, eps).to(x_right.dtype)
    x_left = scaled(wide_left, mean, scales_left, eps).to(x_left.dtype)
    return x_left, x_right


@triton.jit
def product(
    x_left, x_right, w_left, w_right, ROWS: tl.constexpr, RIGHT: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Rows times columns, [ROWS, COLUMNS] in float32: one sum over k, in ascending order."""
    x_left = tl.broadcast_to(x_left, (ROWS, w_left.shape[1]))
    total = tl.dot(x_left, w_left.T, input_precision=PRECISION)
    if RIGHT:
        x_right = tl.broadcast_to(x_right, (ROWS, RIGHT))
        total = tl.dot(x_right, w_right.T, total, input_precision=PRECISION)
    return total


@triton.jit
def halves(total, ROWS: tl.constexpr, PART: tl.constexpr):  # [ROWS, 2 * PART] -> [ROWS, PART] both
    return tl.split(tl.permute(tl.reshape(total, (ROWS, 2, PART)), (0, 2, 1)))


@triton.jit(do_not_specialize=["num_rows"])
def _small_kernel(
    x,
    weight,  # [N, K], or [2 N, K] when gated: gate, then up
    scales,
    residual,  # [num_rows, N]
    out,  # [num_rows, N]
    num_rows,
    N,
    K,
    x_stride,
    eps,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    IS_SINGLE: tl.constexpr,
    LEFT: tl.constexpr,
    RIGHT: tl.constexpr,
    HAS_NORM: tl.constexpr,
    IS_GATED: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    OUTPUTS: tl.constexpr = COLUMNS // 2 if IS_GATED else COLUMNS
    channel = tl.arange(0, COLUMNS)
    column = tl.program_id(0) * OUTPUTS + channel % OUTPUTS
    source = column + channel // OUTPUTS * N
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    output = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    at = row[:, None].to(tl.int64) * N + output[None, :]
    inside = (row < num_rows)[:, None] & (output < N)[None, :]
    w_left, w_right, scales_left, scales_right = load_weights(
        weight, source, column < N, scales, K, LEFT, RIGHT, HAS_NORM, PDL
    )
    a_left, a_right = load_rows(x, row, num_rows, K, x_stride, IS_SINGLE, LEFT, RIGHT)
    if HAS_RESIDUAL:
        before = tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
    if HAS_NORM:
        a_left, a_right = normed(a_left, a_right, scales_left, scales_right, K, eps, RIGHT)
    total = product(a_left, a_right, w_left, w_right, ROWS, RIGHT, PRECISION)
    if IS_GATED:
        gate, up = halves(total, ROWS, OUTPUTS)
        total = swiglu_of(gate, up, out.dtype.element_ty)
    if HAS_RESIDUAL:
        total += before
    tl.store(out + at, total.to(out.dtype.element_ty), mask=inside)


def small_plus(
    x: torch.Tensor,  # [n, in]
    weight: torch.Tensor,  # [out, in]
    residual: torch.Tensor,  # [n, out] contiguous
    *,
    tile: SmallTile = CHOSEN,
) -> torch.Tensor:  # [n, out]
    """residual + x W^T, rounded once."""
    # There is no norm: the kernel gets any pointer for its scales and does not read it.
    return _launch(x, weight, weight[0], 0.0, residual, tile, has_residual=True)


def normed_swiglu_triton(
    x: torch.Tensor,  # [n, in]
    norm: Norm,  # weight [in], or [0] for rows as they are
    weight: torch.Tensor,  # [2 * intermediate, in] gate, then up
    *,
    tile: SmallTile = CHOSEN,
) -> torch.Tensor:  # [n, intermediate]
    """silu(gate) * up of the two halves of norm(x) W^T, which are rounded first."""
    return _launch(x, weight, norm.weight, norm.eps, x, tile, is_gated=True)


def _launch(
    x: torch.Tensor,
    weight: torch.Tensor,
    scales: torch.Tensor,
    eps: float,
    residual: torch.Tensor,
    tile: SmallTile,
    *,
    has_residual: bool = False,
    is_gated: bool = False,
) -> torch.Tensor:
    num_rows, depth = x.shape
    size = weight.shape[0] // (2 if is_gated else 1)
    outputs = tile.columns // (2 if is_gated else 1)
    out = torch.empty((num_rows, size), dtype=x.dtype, device=x.device)
    kernel: Any = _small_kernel[(triton.cdiv(size, outputs), triton.cdiv(num_rows, tile.rows))]
    kernel(
        x,
        weight,
        scales,
        residual,
        out,
        num_rows,
        size,
        depth,
        x.stride(0),
        eps,
        HAS_NORM=not has_residual and len(scales) > 0,
        IS_GATED=is_gated,
        HAS_RESIDUAL=has_residual,
        **options_of(x, tile),
    )
    return out


def options_of(x: torch.Tensor, tile: SmallTile) -> dict[str, Any]:
    """The arguments of both kernels besides tensors and sizes."""
    num_rows, depth = x.shape
    left = triton.next_power_of_2(depth + 1) // 2  # the largest power of two up to the depth
    return {
        "ROWS": tile.rows,
        "COLUMNS": tile.columns,
        "IS_SINGLE": num_rows == 1,
        "LEFT": left,
        "RIGHT": max(triton.next_power_of_2(depth - left), LEAST_SMALL_INPUTS)
        if depth > left
        else 0,
        "PRECISION": "ieee" if x.dtype == torch.float32 else "tf32",
        "PDL": overlap.is_on(x),
        "num_warps": tile.num_warps,
        **EXACT,
        **overlap.options(x),
    }
