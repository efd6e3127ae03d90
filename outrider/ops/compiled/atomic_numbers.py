"""Integers that several threads read and write, at an address, in compiled functions."""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from outrider.ops.compiled.vector_ir import INT64

Emit = Callable[..., ir.Value]


def _typed(signature: Any, emit: Emit) -> Any:
    """What numba takes: the types, and what writes the LLVM code."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        del context, signature
        address, *values = arguments
        return emit(builder, builder.inttoptr(address, INT64.as_pointer()), *values)

    return signature, generate


@intrinsic  # type: ignore[untyped-decorator]
def atomic_add(context: Any, address: Any, value: Any) -> Any:
    """The integer before the sum."""
    del context, address, value

    def emit(builder: ir.IRBuilder, pointer: ir.Value, added: ir.Value) -> ir.Value:
        return builder.atomic_rmw("add", pointer, added, "seq_cst")

    return _typed(types.int64(types.intp, types.int64), emit)


@intrinsic  # type: ignore[untyped-decorator]
def atomic_load(context: Any, address: Any) -> Any:
    """The integer, and what other threads wrote before it."""
    del context, address

    def emit(builder: ir.IRBuilder, pointer: ir.Value) -> ir.Value:
        return builder.load_atomic(pointer, "acquire", align=8)

    return _typed(types.int64(types.intp), emit)


@intrinsic  # type: ignore[untyped-decorator]
def atomic_store(context: Any, address: Any, value: Any) -> Any:
    """Threads that load the value see what was written before it."""
    del context, address, value

    def emit(builder: ir.IRBuilder, pointer: ir.Value, value: ir.Value) -> ir.Value:
        builder.store_atomic(value, pointer, "release", align=8)
        return ir.Constant(INT64, 0)

    return _typed(types.int64(types.intp, types.int64), emit)
