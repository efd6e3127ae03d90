"""The exponential function for compiled loops: a compiler can vectorise it, unlike a library's."""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from outrider.ops.compiled.kernel_cache import compiled
from outrider.ops.compiled.vector_ir import FLOAT, INT32

_LOG2_E = np.float32(1.44269504)
_LN2_HIGH = np.float32(0.693359375)  # exact in few bits, so that products with it are exact
_LN2_LOW = np.float32(-2.12194440e-4)
_ROUNDER = np.float32(12582912.0)  # 1.5 * 2 ** 23: adding and subtracting it rounds to integers
_LEAST, _MOST = np.float32(-87.0), np.float32(88.0)  # where the result is a normal number
_ONE = np.float32(1.0)
# Cephes' polynomial of (exp(r) - 1 - r) / r ** 2 for |r| <= ln(2) / 2.
_C0, _C1 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3)
_C2, _C3 = np.float32(8.3334519073e-3), np.float32(4.1665795894e-2)
_C4, _C5 = np.float32(1.6666665459e-1), np.float32(5.0000001201e-1)


@compiled()
def exp_of(x: np.float32) -> np.float32:
    """exp(x) in float32 with a relative error below 2e-7; NaN for NaN and infinities."""
    bounded = min(max(x, _LEAST), _MOST)
    steps = (bounded * _LOG2_E + _ROUNDER) - _ROUNDER
    rest = bounded - steps * _LN2_HIGH - steps * _LN2_LOW
    series = ((((_C0 * rest + _C1) * rest + _C2) * rest + _C3) * rest + _C4) * rest + _C5
    scale = float_of((np.int32(steps) + np.int32(127)) << np.int32(23))
    result: np.float32 = (series * rest * rest + rest + _ONE) * scale + (x - x)
    return result


@intrinsic  # type: ignore[untyped-decorator]
def float_of(context: Any, bits: Any) -> Any:
    """The float32 with these bits."""
    del context, bits

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        del context, signature
        return builder.bitcast(arguments[0], FLOAT)

    return types.float32(types.int32), generate


@intrinsic  # type: ignore[untyped-decorator]
def bits_of(context: Any, value: Any) -> Any:
    """The bits of a float32."""
    del context, value

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        del context, signature
        return builder.bitcast(arguments[0], INT32)

    return types.int32(types.float32), generate
