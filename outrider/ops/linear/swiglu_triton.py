"""SwiGLU of a fused gate and up projection: the kernel of `swiglu_reference`."""
# Triton reads kernels as source; it has no types for them.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import math
from typing import Any

import torch
import triton
import triton.language as tl

from outrider.ops import dependent_launch as overlap

BLOCK = 1024  # 8 elements per thread of 4 warps: 16 bytes of bfloat16


@triton.jit
def swiglu_of(gate, up, DTYPE: tl.constexpr):
    """silu(gate) * up in float32, of values that are rounded to the type first.

    So a fused projection has the bits of a projection and an activation one after another.
    """
    gate, up = gate.to(DTYPE).to(tl.float32), up.to(DTYPE).to(tl.float32)
    return gate / (1.0 + tl.exp(-gate)) * up


@triton.jit
def _swiglu_kernel(
    gate_up,
    out,
    row_stride,
    width,
    limit,
    IS_LIMITED: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    source = gate_up + row * row_stride + columns
    overlap.begin(PDL)
    gate = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(source + width, mask=inside, other=0.0).to(tl.float32)
    if IS_LIMITED:
        gate = tl.minimum(gate, limit)
        up = tl.maximum(tl.minimum(up, limit), -limit)
    result = swiglu_of(gate, up, tl.float32)  # rounded already, or clamped
    tl.store(out + row * width + columns, result.to(out.dtype.element_ty), mask=inside)


def swiglu_triton(
    gate_up: torch.Tensor,  # [n, 2 * width]
    limit: float = math.inf,
) -> torch.Tensor:  # [n, width]
    """silu(gate) * up, in float32 and rounded once; gates and ups are clamped to the limit."""
    assert gate_up.stride(1) == 1
    num_rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((num_rows, width), dtype=gate_up.dtype, device=gate_up.device)
    kernel: Any = _swiglu_kernel[(num_rows, triton.cdiv(width, BLOCK))]
    kernel(
        gate_up,
        out,
        gate_up.stride(0),
        width,
        limit,
        IS_LIMITED=limit < math.inf,
        BLOCK=BLOCK,
        PDL=overlap.is_on(gate_up),
        **overlap.options(gate_up),
    )
    return out
