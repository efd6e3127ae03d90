"""Parts of a tile of a linear layer that several kernels share: its dense sum, and its ending."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl

from outrider.ops.linear.swiglu_triton import swiglu_of


@triton.jit
def dense_product(
    x_line,  # [ROWS] pointers to rows of x
    is_row,  # [ROWS]
    weight,  # [lines, K]
    line,  # [COLUMNS] int64
    is_line,  # [COLUMNS]
    K,
    DEPTH: tl.constexpr,
    IS_SWAPPED: tl.constexpr,  # the weight is the first operand
    IS_EVEN: tl.constexpr,  # lines and K are multiples of the tile
    PRECISION: tl.constexpr,
):  # [ROWS, COLUMNS] float32, or [COLUMNS, ROWS] when swapped
    """One sum over all inputs in ascending order, sixteen products at a time."""
    ROWS: tl.constexpr = x_line.shape[0]
    COLUMNS: tl.constexpr = line.shape[0]
    depth = tl.arange(0, DEPTH)
    w_at = weight + line[:, None] * K + depth[None, :]
    x_at = x_line[:, None] + depth[None, :]
    total = tl.zeros((COLUMNS, ROWS) if IS_SWAPPED else (ROWS, COLUMNS), tl.float32)
    for k in range(0, K, DEPTH):
        if IS_EVEN:
            w = tl.load(w_at + k)
            a = tl.load(x_at + k, mask=is_row[:, None], other=0.0)
        else:
            inside = depth[None, :] < K - k
            w = tl.load(w_at + k, mask=inside & is_line[:, None], other=0.0)
            a = tl.load(x_at + k, mask=inside & is_row[:, None], other=0.0)
        if IS_SWAPPED:
            total = tl.dot(w, a.T, total, input_precision=PRECISION)
        else:
            total = tl.dot(a, w.T, total, input_precision=PRECISION)
    return total


@triton.jit
def finish_rows(
    total,  # [ROWS, COLUMNS] float32; gates, then ups when gated
    residual,  # [num_rows, N]
    out,  # [num_rows, N]
    row,  # [ROWS]
    is_row,  # [ROWS]
    first,  # output
    N,
    IS_GATED: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
):
    """Apply the gate or add the residual, round once and store."""
    ROWS: tl.constexpr = total.shape[0]
    OUTPUTS: tl.constexpr = total.shape[1] // 2 if IS_GATED else total.shape[1]
    if IS_GATED:
        halves = tl.permute(tl.reshape(total, (ROWS, 2, OUTPUTS)), (0, 2, 1))
        gate, up = tl.split(halves)
        total = swiglu_of(gate, up, out.dtype.element_ty)
    output = first + tl.arange(0, OUTPUTS)
    at = row[:, None].to(tl.int64) * N + output[None, :]
    inside = is_row[:, None] & (output < N)[None, :]
    if HAS_RESIDUAL:
        total += tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=inside)
