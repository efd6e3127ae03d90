"""A step of an EAGLE-3 head as one parallel region: a compiled function for every thread.

The layer is the function of `layer_region`; tokens and states are joined by `join_rows`, which has
the bits of the norms that the parts run alone (`tests/models/eagle/test_compiled_head.py`). The
array of integers that it gets:

    0 rows, 1 tokens, 2 embedding, 3 its rows, 4 channels of a hidden state, 5 norm of embeddings,
    6 norm of hidden states, 7 hidden states, 8 both side by side, which is the layer's input
    9 residual stream, 10 whether it begins with the normalised hidden states
    11 channels of a head, 12 positions, 13 radians per position, 14 signs of sines, 15 cosines,
    16 sines (`rotation_rows`)
    17 what `run_layers` gets
    18 written: whether a token has no row in the embedding
"""

import numpy as np
from numba import carray

from outrider.ops.compiled.address import pointer_to
from outrider.ops.compiled.joined_rows import join_rows
from outrider.ops.compiled.kernel_cache import callback, compiled
from outrider.ops.compiled.layer_region import layers_of_team
from outrider.ops.compiled.openmp import num_threads, thread_index
from outrider.ops.compiled.rotation_rows import rotation_rows
from outrider.ops.compiled.team_barrier import wait_for_team

NUM_GIVEN = 19
IS_OUTSIDE = 18


@compiled()
def _begin_stream(given: np.ndarray) -> None:
    """This thread's rows, which it has joined itself."""
    rows, width = given[0], given[4]
    states = carray(pointer_to(given[7]), (rows, width), np.float32)
    joined = carray(pointer_to(given[8]), (rows, 2 * width), np.float32)
    stream = carray(pointer_to(given[9]), (rows, width), np.float32)
    for row in range(thread_index(), rows, num_threads()):
        stream[row] = joined[row, width:] if given[10] else states[row]


@callback("void(voidptr)")
def run_head(pointer: int) -> None:
    given = carray(pointer, (NUM_GIVEN,), np.int64)
    rows, tokens, embedding, vocab, width, left, right, states, joined = given[:9]
    if join_rows(rows, tokens, embedding, vocab, width, left, right, states, joined):
        given[IS_OUTSIDE] = 1
    _begin_stream(given)
    dim, positions, radians, signs, cos, sin = given[11:17]
    rotation_rows(rows, dim, positions, radians, signs, cos, sin)
    wait_for_team()
    layers_of_team(given[17])
