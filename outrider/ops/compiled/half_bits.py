"""The bits of float16 numbers, for compiled functions: numba has no such type on a CPU."""

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from outrider.ops.compiled.vector_ir import FLOAT, HALF

_INT16 = ir.IntType(16)


@intrinsic  # type: ignore[untyped-decorator]
def half_bits(context: Any, value: Any) -> Any:
    """The bits of the float16 nearest to a float32."""
    del context, value

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        del context, signature
        return builder.bitcast(builder.fptrunc(arguments[0], HALF), _INT16)

    return types.uint16(types.float32), generate


@intrinsic  # type: ignore[untyped-decorator]
def float_of_half(context: Any, bits: Any) -> Any:
    """The float32 that equals the float16 with these bits."""
    del context, bits

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        del context, signature
        return builder.fpext(builder.bitcast(arguments[0], HALF), FLOAT)

    return types.float32(types.uint16), generate
