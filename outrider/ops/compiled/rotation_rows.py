"""Cosines and sines of positions: a compiled function that every thread of a team runs, or one.

The array of integers of `rotation_of_rows` has the arguments of `rotation_rows`, in their order.
"""

import llvmlite.binding as llvm
import numpy as np
from numba import carray, types

from outrider.ops.compiled.address import pointer_to
from outrider.ops.compiled.kernel_cache import callback
from outrider.ops.compiled.openmp import num_threads, thread_index

_NUM_GIVEN = 7
_ROTATION = types.void(*[types.intp] * _NUM_GIVEN)


@callback(_ROTATION)
def _rotation_rows(
    rows: int,
    dim: int,  # channels of a head
    positions_at: int,  # address of int64 [rows]
    radians_at: int,  # address of float32 [dim] per position; both halves are equal
    signs_at: int,  # address of float32 [dim]: -scale in the first half, scale in the second
    cos_at: int,  # address of float32 [rows, dim]
    sin_at: int,  # likewise; the first half is negated
) -> None:
    positions = carray(pointer_to(positions_at), (rows,), np.int64)
    radians = carray(pointer_to(radians_at), (dim,), np.float32)
    scale = carray(pointer_to(signs_at), (dim,), np.float32)[dim - 1]
    cos = carray(pointer_to(cos_at), (rows, dim), np.float32)
    sin = carray(pointer_to(sin_at), (rows, dim), np.float32)
    half = dim // 2
    for row in range(thread_index(), rows, num_threads()):
        position = np.float32(positions[row])
        for place in range(half):
            angle = position * radians[place]
            near, far = np.cos(angle), np.sin(angle) * scale
            if radians[place] != 0:  # else the channel is not rotated, and so not scaled either
                near = near * scale
            cos[row, place], cos[row, place + half] = near, near
            sin[row, place], sin[row, place + half] = -far, far


# Callers get a symbol: numba would compile the function again inside of each of them.
llvm.add_symbol("outrider_rotation_rows", _rotation_rows.address)
rotation_rows = types.ExternalFunction("outrider_rotation_rows", _ROTATION)


@callback("void(voidptr)")
def rotation_of_rows(pointer: int) -> None:
    given = carray(pointer, (_NUM_GIVEN,), np.int64)
    rotation_rows(given[0], given[1], given[2], given[3], given[4], given[5], given[6])
