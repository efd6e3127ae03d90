"""Activations as 8-bit codes with a scale per 32 inputs, in compiled functions."""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from outrider.ops.compiled.block_kind import BLOCK
from outrider.ops.compiled.kernel_cache import compiled
from outrider.ops.compiled.vector_ir import (
    FLOAT,
    FLOATS,
    INT8S,
    INT32,
    INTS,
    WIDTH,
    constant,
    declared,
    load,
    number,
    splat,
)

_LEVELS = 127.0
_NO_SIGN = 0x7FFFFFFF


@compiled()
def quantise_row(
    x: np.ndarray,  # float32 [in]
    codes: np.ndarray,  # int8 [blocks * 32]
    scales: np.ndarray,  # float32 [blocks, 2]: the scale, and the scale times the sum of the codes
    sums: np.ndarray,  # int32 [blocks, 2] of all codes, and of those of the first half
    rest: np.ndarray,  # float32 [32] scratch
) -> None:
    """Inputs past the end of the last block count as 0."""
    whole = len(x) // BLOCK
    for block in range(whole):
        quantise_block(
            x.ctypes.data + block * BLOCK * 4,
            codes.ctypes.data + block * BLOCK,
            scales.ctypes.data + block * 2 * 4,
            sums.ctypes.data + block * 2 * 4,
        )
    if whole * BLOCK < len(x):
        num = len(x) - whole * BLOCK
        for place in range(BLOCK):
            rest[place] = x[whole * BLOCK + place] if place < num else np.float32(0.0)
        quantise_block(
            rest.ctypes.data,
            codes.ctypes.data + whole * BLOCK,
            scales.ctypes.data + whole * 2 * 4,
            sums.ctypes.data + whole * 2 * 4,
        )


@intrinsic  # type: ignore[untyped-decorator]
def quantise_block(
    context: Any,
    x: Any,  # address of 32 float32
    codes: Any,  # address of 32 int8
    scale: Any,  # address of two float32: the scale, and the scale times the sum of all codes
    totals: Any,  # address of two int32: the sums of all codes, and of the first 16
) -> Any:
    """The largest absolute value is found by its bits, so a NaN counts as the largest.

    The scale of such a block is NaN, and so are all products with it.
    """
    del context, x, codes, scale, totals

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        del signature
        _emit_block(builder, *arguments)
        return context.get_dummy_value()

    return types.void(*[types.intp] * 4), generate


def _emit_block(
    builder: ir.IRBuilder, x: ir.Value, codes: ir.Value, scale: ir.Value, totals: ir.Value
) -> None:
    halves = [load(builder, builder.add(x, number(64 * i)), FLOATS, align=4) for i in range(2)]
    largest = builder.bitcast(_largest_bits(builder, halves), FLOAT)
    is_zero = builder.fcmp_ordered("==", largest, ir.Constant(FLOAT, 0.0))
    inverse = builder.fdiv(ir.Constant(FLOAT, _LEVELS), largest)
    inverse = builder.select(is_zero, ir.Constant(FLOAT, 0.0), inverse)
    nearest = declared(builder.module, "llvm.rint.v16f32", FLOATS, [FLOATS])
    add_up = declared(builder.module, "llvm.vector.reduce.add.v16i32", INT32, [INTS])
    parts = []
    for place, half in enumerate(halves):
        rounded = builder.call(nearest, [builder.fmul(half, splat(builder, inverse, FLOATS))])
        integers = builder.fptosi(rounded, INTS)
        parts.append(builder.call(add_up, [integers]))
        _store(builder, builder.trunc(integers, INT8S), builder.add(codes, number(WIDTH * place)))
    total, step = builder.add(*parts), builder.fdiv(largest, ir.Constant(FLOAT, _LEVELS))
    _store(builder, total, totals)
    _store(builder, parts[0], builder.add(totals, number(4)))
    _store(builder, step, scale)
    share = builder.fmul(step, builder.sitofp(total, FLOAT))
    _store(builder, share, builder.add(scale, number(4)))


def _largest_bits(builder: ir.IRBuilder, halves: list[ir.Value]) -> ir.Value:
    """The bits of the largest absolute value: those of floats are ordered as the numbers are."""
    reduce = declared(builder.module, "llvm.vector.reduce.smax.v16i32", INT32, [INTS])
    bits = [builder.and_(builder.bitcast(half, INTS), constant(_NO_SIGN)) for half in halves]
    left, right = (builder.call(reduce, [each]) for each in bits)
    return builder.select(builder.icmp_signed(">", left, right), left, right)


def _store(builder: ir.IRBuilder, value: ir.Value, address: ir.Value) -> None:
    builder.store(value, builder.inttoptr(address, value.type.as_pointer()), align=1)
