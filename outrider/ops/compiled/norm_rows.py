"""RMS norms of many vectors: a compiled function that every thread of a team runs, or one alone.

0 vectors, 1 channels, 2 weights, 3 x, 4 weight with eps behind it, 5 output
"""

import numpy as np
from numba import carray

from outrider.ops.compiled.address import pointer_to
from outrider.ops.compiled.coded_rows import norm_row
from outrider.ops.compiled.kernel_cache import callback
from outrider.ops.compiled.thread_team import num_threads, thread_index


@callback("void(voidptr)")
def norm_rows(pointer: int) -> None:
    """Vector i has the weight i modulo their number."""
    given = carray(pointer, (6,), np.int64)
    vectors, channels, weights = given[0], given[1], given[2]
    x = carray(pointer_to(given[3]), (vectors, channels), np.float32)
    out = carray(pointer_to(given[5]), (vectors, channels), np.float32)
    weight = carray(pointer_to(given[4]), (weights * channels + 1,), np.float32)
    eps, thread, threads = weight[weights * channels], thread_index(), num_threads()
    for vector in range(vectors * thread // threads, vectors * (thread + 1) // threads):
        first = vector % weights * channels
        norm_row(x[vector], weight[first : first + channels], eps, out[vector])
