"""Arrays at an address that torch allocated, in compiled functions."""

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic


@intrinsic  # type: ignore[untyped-decorator]
def pointer_to(context: Any, address: Any) -> Any:
    """The pointer that `carray` takes."""
    del context, address

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        kind = context.get_value_type(signature.return_type)
        return builder.inttoptr(arguments[0], kind)

    return types.voidptr(types.intp), generate
