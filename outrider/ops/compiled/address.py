"""Arrays at an address that torch allocated, in compiled functions."""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.extending import intrinsic

from outrider.ops.compiled.kernel_cache import compiled

_MANY = 1 << 40  # elements: the size of the array is not known here


@intrinsic  # type: ignore[untyped-decorator]
def pointer_to(context: Any, address: Any) -> Any:
    """The pointer that `carray` takes."""
    del context, address

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        kind = context.get_value_type(signature.return_type)
        return builder.inttoptr(arguments[0], kind)

    return types.voidptr(types.intp), generate


@compiled()
def int64_at(address: int) -> np.ndarray:
    """The integers from an address on."""
    numbers: np.ndarray = carray(pointer_to(address), (_MANY,), np.int64)
    return numbers


@compiled()
def float32_at(address: int) -> np.ndarray:
    """The floats from an address on."""
    numbers: np.ndarray = carray(pointer_to(address), (_MANY,), np.float32)
    return numbers


@compiled()
def int32_at(address: int) -> np.ndarray:
    """The integers of 32 bits from an address on."""
    numbers: np.ndarray = carray(pointer_to(address), (_MANY,), np.int32)
    return numbers
