"""Embeddings left of hidden states, each normalised: a compiled function for every thread.

Callers get a symbol: numba would compile the function again inside of each of them.
"""

import llvmlite.binding as llvm
import numpy as np
from numba import carray, types

from outrider.ops.compiled.address import pointer_to
from outrider.ops.compiled.coded_rows import norm_row
from outrider.ops.compiled.kernel_cache import callback
from outrider.ops.compiled.openmp import num_threads, thread_index

_JOIN = types.intp(*[types.intp] * 9)


@callback(_JOIN)
def _join_rows(
    rows: int,
    tokens_at: int,  # address of int64 [rows]
    embedding_at: int,  # address of float32 [vocab, width]
    vocab: int,
    width: int,
    left_at: int,  # address of float32 [width + 1]: the norm of embeddings, eps behind it
    right_at: int,  # likewise of hidden states
    states_at: int,  # address of float32 [rows, width]
    joined_at: int,  # address of float32 [rows, 2 * width]: written
) -> int:
    """Whether a token of this thread has no row in the embedding."""
    tokens = carray(pointer_to(tokens_at), (rows,), np.int64)
    embedding = carray(pointer_to(embedding_at), (vocab, width), np.float32)
    left = carray(pointer_to(left_at), (width + 1,), np.float32)
    right = carray(pointer_to(right_at), (width + 1,), np.float32)
    states = carray(pointer_to(states_at), (rows, width), np.float32)
    joined = carray(pointer_to(joined_at), (rows, 2 * width), np.float32)
    is_outside = 0
    for row in range(thread_index(), rows, num_threads()):
        token = tokens[row]
        if token < 0 or token >= vocab:
            is_outside = 1
            token = 0
        norm_row(embedding[token], left[:width], left[width], joined[row, :width])
        norm_row(states[row], right[:width], right[width], joined[row, width:])
    return is_outside


llvm.add_symbol("outrider_join_rows", _join_rows.address)
join_rows = types.ExternalFunction("outrider_join_rows", _JOIN)
