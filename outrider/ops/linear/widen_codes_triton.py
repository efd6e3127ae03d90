"""All codes of a quantised weight in the type of activations, for rows that read them often."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from dataclasses import replace
from typing import Any

import torch
import triton
import triton.language as tl

from outrider.ops.linear.code_values_triton import has_assembly
from outrider.ops.linear.kernel_weight import BLOCK, LINES, KernelWeight
from outrider.ops.linear.linear_limits import MOST_QUANTISED_ROWS
from outrider.ops.linear.quantised_product_triton import block_numbers, block_width, code_arguments

_LINES = tl.constexpr(LINES)
_BLOCK = tl.constexpr(BLOCK)


@triton.jit
def _widen_kernel(
    codes, words, zeros,
    out,  # [lines / LINES, K / BLOCK, LINES, BLOCK]
    num_lines, K,
    COMPILED: tl.constexpr, KIND: tl.constexpr, GROUP: tl.constexpr, FORM: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
):  # fmt: skip
    WIDTH: tl.constexpr = block_width(KIND)
    within, place = tl.arange(0, _LINES)[:, None], tl.arange(0, _BLOCK)[None, :]
    block = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
    line = tl.program_id(0).to(tl.int64) * _LINES + tl.arange(0, _LINES)
    at = codes + block * (_LINES * WIDTH) + within * WIDTH + tl.arange(0, WIDTH)[None, :]
    first = tl.zeros((_LINES,), tl.int32) + tl.program_id(1) * _BLOCK
    numbers = block_numbers(
        tl.load(at), words, zeros, line, line < num_lines, first, K, num_lines,
        out.dtype.element_ty, KIND, GROUP, FORM, HAS_ZEROS, COMPILED,
    )  # fmt: skip
    tl.store(out + block * (_LINES * _BLOCK) + within * _BLOCK + place, numbers)


def widens_first(x: torch.Tensor) -> bool:  # [n, in]
    """Whether a product with these rows is faster after its codes are widened.

    On GPUs older than Hopper, Triton 3.6 takes the order of inputs in a product from the size of
    codes, so wide ones would have other bits.
    """
    return x.shape[0] > MOST_QUANTISED_ROWS and has_assembly(x)


def widen_codes(weight: KernelWeight, x: torch.Tensor) -> KernelWeight:
    """The same weight with its codes in the type of x."""
    blocks, (lines, inputs) = weight.codes.shape[:2], weight.shape
    codes = torch.empty((*blocks, LINES, BLOCK), dtype=x.dtype, device=x.device)
    kernel: Any = _widen_kernel[tuple(blocks)]
    kernel(
        out=codes,
        num_lines=lines,
        K=inputs,
        COMPILED=has_assembly(x),
        **code_arguments(weight),
    )
    return replace(weight, kind="wide", codes=codes)
