"""Codes of 8 bits in kernels: widened as they are read, rounded as they are stored.

A GPU that converts e4m3 (compute capability 8.9 and up) gets pools of codes as they are. Others,
and the interpreter, whose own conversion loses small numbers and NaN, get bytes, and compute.
"""
# Triton reads kernels as source; it has no types for them.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from typing import Any

import torch
import triton
import triton.language as tl

from outrider.ops import dependent_launch as overlap
from outrider.ops import gpu_facts
from outrider.ops.attention.kv_codes import LARGEST, is_narrow

_BLOCK = 1024
# Codes that are computed come as integers: unsigned for e4m3, signed for e5m2.
_BYTES = {torch.float8_e4m3fn: torch.uint8, torch.float8_e5m2: torch.int8}
_CONVERTS = (8, 9)  # the least compute capability that converts e4m3


def pool_argument(layer: torch.Tensor) -> torch.Tensor:
    """The pool as kernels read and write it."""
    if not is_narrow(layer) or gpu_facts.capability(layer) >= _CONVERTS:
        return layer
    return layer.view(_BYTES[layer.dtype])


@triton.jit
def _widen_bytes(codes, MANTISSA: tl.constexpr, BIAS: tl.constexpr, FIRST_NAN: tl.constexpr):
    """float32 numbers of codes with so many bits of mantissa."""
    bits = codes.to(tl.int32) & 0xFF
    size = bits & 0x7F
    normal = (size << (23 - MANTISSA)) + ((127 - BIAS) << 23)
    small = size.to(tl.float32) * (2.0 ** (1 - BIAS - MANTISSA))
    number = tl.where(size >= (1 << MANTISSA), normal.to(tl.float32, bitcast=True), small)
    number = tl.where(size >= FIRST_NAN, float("nan"), number)
    return tl.where(bits >= 0x80, -number, number)


@triton.jit
def widened(stored, TYPE: tl.constexpr):
    """What a pool holds, in the type of the queries. Nothing changes unless these are codes."""
    if stored.dtype == tl.uint8:
        stored = _widen_bytes(stored, 3, 7, 0x7F)
    elif stored.dtype == tl.int8:
        stored = _widen_bytes(stored, 2, 15, 0x7D)
    if not stored.dtype.is_fp8():
        return stored.to(TYPE)
    # By way of float32, which two instructions for two codes do; the direct way is slower.
    number = stored.to(tl.float32).to(TYPE)
    if tl.float32 != TYPE:
        # Triton 3.6 orders the inputs of a product by the size of what was loaded, so a tile of few
        # queries would sum in another order than a tile of many, or than wide keys. It does not
        # look through assembly that may have effects.
        same = number.dtype
        number = tl.inline_asm_elementwise("", "=r,0", [number], same, is_pure=False, pack=2)
    return number


@triton.jit
def _round_to_bytes(x, MANTISSA: tl.constexpr, BIAS: tl.constexpr):
    """The nearest codes, of two the even one, of float32 numbers that are not too large."""
    size = tl.abs(x)
    exponent = tl.maximum(size.to(tl.int32, bitcast=True) >> 23, 128 - BIAS)
    # Adding a number whose last bit is worth one step rounds to whole steps.
    rounder = ((exponent + (23 - MANTISSA)) << 23).to(tl.float32, bitcast=True)
    rounded = (size + rounder) - rounder
    normal = (rounded.to(tl.int32, bitcast=True) >> (23 - MANTISSA)) - ((127 - BIAS) << MANTISSA)
    small = (rounded * (2.0 ** (BIAS + MANTISSA - 1))).to(tl.int32)
    code = tl.where(rounded >= 2.0 ** (1 - BIAS), normal, small)
    code = tl.where(x == x, code, 0x7F)
    return tl.where(x < 0, code | 0x80, code)


@triton.jit
def narrowed(x, LARGEST: tl.constexpr, TYPE: tl.constexpr):
    """float32 numbers as a pool holds them. Too large ones become the largest; NaN stays NaN."""
    x = tl.where(x > LARGEST, LARGEST, x)
    x = tl.where(x < -LARGEST, -LARGEST, x)
    if tl.uint8 == TYPE:
        codes = _round_to_bytes(x, 3, 7).to(tl.uint8)
    elif tl.int8 == TYPE:
        codes = _round_to_bytes(x, 2, 15).to(tl.uint8).to(tl.int8, bitcast=True)
    else:
        codes = x.to(TYPE)
    return codes


@triton.jit(do_not_specialize_on_alignment=["slots"])  # any view of a plan
def _store_kernel(
    layer, slots, vectors, width, LARGEST: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr
):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    overlap.begin(PDL)
    slot = tl.load(slots + token).to(tl.int64)
    x = tl.load(vectors + token * width + column, mask=column < width, other=0.0).to(tl.float32)
    codes = narrowed(x, LARGEST, layer.dtype.element_ty)
    tl.store(layer + slot * width + column, codes, mask=column < width)


def store_codes_triton(
    layer: torch.Tensor,  # [pages, page_size, vectors, width] of codes, contiguous
    slots: torch.Tensor,  # [num_query] int64
    vectors: torch.Tensor,  # [num_query, vectors, width] contiguous
) -> None:
    """`store_codes_reference` in one launch."""
    assert vectors.is_contiguous()
    assert layer.is_contiguous()
    width = layer.shape[2] * layer.shape[3]
    block = min(_BLOCK, triton.next_power_of_2(width))
    kernel: Any = _store_kernel[(slots.shape[0], triton.cdiv(width, block))]
    kernel(
        pool_argument(layer),
        slots,
        vectors,
        width,
        LARGEST=LARGEST[layer.dtype],
        BLOCK=block,
        PDL=overlap.is_on(vectors),
        **overlap.options(vectors),
    )
