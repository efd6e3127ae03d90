"""RMS norms of many vectors: a compiled function that every thread of a team runs, or one alone.

The array of integers of `norm_rows` has the arguments of `norm_vectors`, in their order.
"""

import llvmlite.binding as llvm
import numpy as np
from numba import carray, types

from outrider.ops.compiled.address import pointer_to
from outrider.ops.compiled.coded_rows import norm_row
from outrider.ops.compiled.kernel_cache import callback
from outrider.ops.compiled.openmp import num_threads, thread_index

_NUM_GIVEN = 6
_NORM = types.void(*[types.intp] * _NUM_GIVEN)


@callback(_NORM)
def _norm_vectors(
    vectors: int,
    channels: int,
    weights: int,
    x_at: int,  # address of float32 [vectors, channels]
    weight_at: int,  # address of float32 [weights, channels], with eps behind it
    out_at: int,  # address of float32 [vectors, channels]
) -> None:
    """Vector i has the weight i modulo their number."""
    x = carray(pointer_to(x_at), (vectors, channels), np.float32)
    out = carray(pointer_to(out_at), (vectors, channels), np.float32)
    weight = carray(pointer_to(weight_at), (weights * channels + 1,), np.float32)
    eps, thread, threads = weight[weights * channels], thread_index(), num_threads()
    for vector in range(vectors * thread // threads, vectors * (thread + 1) // threads):
        first = vector % weights * channels
        norm_row(x[vector], weight[first : first + channels], eps, out[vector])


# Callers get a symbol: numba would compile the function again inside of each of them.
llvm.add_symbol("outrider_norm_vectors", _norm_vectors.address)
norm_vectors = types.ExternalFunction("outrider_norm_vectors", _NORM)


@callback("void(voidptr)")
def norm_rows(pointer: int) -> None:
    given = carray(pointer, (_NUM_GIVEN,), np.int64)
    norm_vectors(given[0], given[1], given[2], given[3], given[4], given[5])
