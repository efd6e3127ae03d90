"""LLVM vectors of 16 numbers, for the parts of kernels that a compiler does not find by itself."""

from collections.abc import Sequence

import llvmlite.binding as llvm
from llvmlite import ir
from numba import config

WIDTH = 16  # numbers of 32 bits in a vector
INT8, INT32, INT64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
FLOAT, HALF = ir.FloatType(), ir.HalfType()
INTS, FLOATS = ir.VectorType(INT32, WIDTH), ir.VectorType(FLOAT, WIDTH)
HALVES, BYTES = ir.VectorType(HALF, WIDTH), ir.VectorType(INT8, 4 * WIDTH)
INT8S, INT16S = ir.VectorType(INT8, WIDTH), ir.VectorType(ir.IntType(16), WIDTH)
NO_INTS, NO_FLOATS = ir.Constant(INTS, [0] * WIDTH), ir.Constant(FLOATS, [0.0] * WIDTH)

_VNNI = "llvm.x86.avx512.vpdpbusd.512"
_FMA = "llvm.fma.v16f32"
_IS_READ, _STAYS_IN_CACHE, _IS_DATA = 0, 3, 1  # of a prefetch


def number(value: int) -> ir.Constant:
    return ir.Constant(INT64, value)


def constant(value: int) -> ir.Constant:
    """A vector of equal integers."""
    return ir.Constant(INTS, [value] * WIDTH)


def load(builder: ir.IRBuilder, address: ir.Value, kind: ir.Type, *, align: int) -> ir.Value:
    return builder.load(builder.inttoptr(address, kind.as_pointer()), align=align)


def splat(builder: ir.IRBuilder, value: ir.Value, kind: ir.VectorType) -> ir.Value:
    """A vector of equal values."""
    undefined = ir.Constant(kind, ir.Undefined)
    first = builder.insert_element(undefined, value, ir.Constant(INT32, 0))
    zeros = ir.Constant(ir.VectorType(INT32, kind.count), [0] * kind.count)
    return builder.shuffle_vector(first, undefined, zeros)


def multiply_add(builder: ir.IRBuilder, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
    """a * b + c, rounded once."""
    return builder.call(_declared(builder.module, _FMA, FLOATS), [a, b, c])


def dot_bytes(
    builder: ir.IRBuilder, total: ir.Value, unsigned: ir.Value, signed: ir.Value
) -> ir.Value:
    """The total plus the products of four unsigned and four signed bytes of each number. Exact."""
    if has_vnni():
        return builder.call(_declared(builder.module, _VNNI, INTS), [total, unsigned, signed])
    pairs = ir.VectorType(INT32, 4 * WIDTH)
    left = builder.zext(builder.bitcast(unsigned, BYTES), pairs)
    right = builder.sext(builder.bitcast(signed, BYTES), pairs)
    products = builder.mul(left, right)
    halves = builder.add(_every_second(builder, products, 0), _every_second(builder, products, 1))
    sums = builder.add(_every_second(builder, halves, 0), _every_second(builder, halves, 1))
    return builder.add(total, sums)


def prefetch(builder: ir.IRBuilder, address: ir.Value) -> None:
    """Ask for memory that is read soon. The address may be any."""
    pointer = INT8.as_pointer()
    kinds = [pointer, INT32, INT32, INT32]
    function = declared(builder.module, "llvm.prefetch.p0", ir.VoidType(), kinds)
    options = [ir.Constant(INT32, each) for each in (_IS_READ, _STAYS_IN_CACHE, _IS_DATA)]
    builder.call(function, [builder.inttoptr(address, pointer), *options])


def has_vnni() -> bool:
    """Whether the machine that numba compiles for multiplies bytes in one instruction."""
    return _has("avx512vnni")


def has_avx512() -> bool:
    """Whether that machine has 32 registers of 16 numbers."""
    return _has("avx512f")


def _has(feature: str) -> bool:
    if config.CPU_NAME or config.CPU_FEATURES:  # set by the user
        return f"+{feature}" in (config.CPU_FEATURES or "")
    return bool(llvm.get_host_cpu_features().get(feature))


def _every_second(builder: ir.IRBuilder, vector: ir.Value, first: int) -> ir.Value:
    places = list(range(first, vector.type.count, 2))
    mask = ir.Constant(ir.VectorType(INT32, len(places)), places)
    return builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), mask)


def _declared(module: ir.Module, name: str, kind: ir.VectorType) -> ir.Function:
    """An LLVM function of three vectors."""
    return declared(module, name, kind, [kind] * 3)


def declared(
    module: ir.Module, name: str, result: ir.Type, operands: Sequence[ir.Type]
) -> ir.Function:
    """An LLVM function, declared once in its module."""
    if name in module.globals:
        return module.globals[name]
    return ir.Function(module, ir.FunctionType(result, operands), name)
