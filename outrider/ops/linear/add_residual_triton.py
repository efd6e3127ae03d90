"""A residual plus a product in float32, rounded once: as the epilogue of `linear_triton.py`."""
# Triton reads kernels as source; it has no types for them.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from typing import Any

import torch
import triton
import triton.language as tl

from outrider.ops import dependent_launch as overlap

BLOCK = 2048  # elements of a program


@triton.jit(do_not_specialize=["num"])
def _add_kernel(product, residual, num, BLOCK: tl.constexpr, PDL: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < num
    overlap.begin(PDL)
    total = tl.load(product + at, mask=inside, other=0.0)
    total += tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(residual + at, total.to(residual.dtype.element_ty), mask=inside)


def add_residual(
    product: torch.Tensor,  # [n, out] float32 contiguous
    residual: torch.Tensor,  # [n, out] contiguous, written
) -> torch.Tensor:  # the residual
    """residual += product"""
    assert product.is_contiguous()
    assert residual.is_contiguous()
    num = residual.numel()
    kernel: Any = _add_kernel[(triton.cdiv(num, BLOCK),)]
    kernel(
        product, residual, num,
        BLOCK=BLOCK, PDL=overlap.is_on(residual), num_warps=8, **overlap.options(residual),
    )  # fmt: skip
    return residual
