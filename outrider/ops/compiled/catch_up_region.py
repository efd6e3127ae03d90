"""The catch-up of an EAGLE-3 head as one parallel region: a compiled function for every thread.

Products, norms of aux hidden states and the KV write are the functions that the parts run alone;
tokens and states are joined by `join_rows`, which has the bits of the norms that the parts run
(`tests/models/eagle/test_compiled_catch_up.py`). The array of integers that it gets:

    0 weights [2, NUM_WEIGHT]: projection of aux hidden states; keys and values
    1 rows, 2 aux hidden states, 3 norms of a row of them, 4 channels of each, 5 their weights with
    eps behind, 6 aux hidden states as the projection reads them: 2 where there are no norms
    7 tokens, 8 embedding, 9 its rows, 10 channels of a hidden state, 11 norm of embeddings,
    12 norm of hidden states, 13 hidden states, 14 both side by side, 15 channels of keys and values
    16 vectors of a slot, 17 channels of a head, 18 cosines, 19 sines, 20 pool, 21 slots
    22 positions, 23 radians per position, 24 signs of sines (`rotation_rows`)
    25 slots of the pool, 26 scratch
    27 written: whether a token has no row of the embedding, or a slot lies outside of the pool
"""

import numpy as np
from numba import carray

from outrider.ops.compiled.joined_rows import join_rows
from outrider.ops.compiled.kernel_cache import callback
from outrider.ops.compiled.norm_rows import norm_vectors
from outrider.ops.compiled.rotation_rows import rotation_rows
from outrider.ops.compiled.team_barrier import wait_for_team
from outrider.ops.compiled.tile_product import NUM_WEIGHT, multiply, rotate_and_store

NUM_GIVEN = 28
IS_OUTSIDE = 27


@callback("void(voidptr)")
def catch_up_rows(pointer: int) -> None:
    given = carray(pointer, (NUM_GIVEN,), np.int64)
    weights, rows, scratch, channels = given[0], given[1], given[26], given[15]
    num_norms = given[3]
    vectors, dim, cos, sin, pool, slots, positions, radians, signs, num_slots = given[16:26]
    rotation_rows(rows, dim, positions, radians, signs, cos, sin)
    if num_norms:
        norm_vectors(rows * num_norms, given[4], num_norms, given[2], given[5], given[6])
        wait_for_team()
    tokens, embedding, vocab, width, left, right, states, joined = given[7:15]
    multiply(weights, rows, given[6], scratch, states, 0)
    wait_for_team()
    if join_rows(rows, tokens, embedding, vocab, width, left, right, states, joined):
        given[IS_OUTSIDE] = 1
    wait_for_team()
    multiply(weights + 8 * NUM_WEIGHT, rows, joined, scratch, channels, 0)
    wait_for_team()
    if rotate_and_store(rows, channels, 0, vectors, dim, cos, sin, pool, slots, num_slots):
        given[IS_OUTSIDE] = 1
