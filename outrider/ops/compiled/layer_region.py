"""All layers of a step as one parallel region: a compiled function for every thread of a team.

It calls the functions that the parts of a layer run alone, with a barrier between. So its bits are
theirs. The array of integers that it gets has a head, then `MOST_GROUPS` groups of query tokens
(`attend_keys`), the pool of every layer, and the layers after which the stream is copied:

    0 length of the array, 1 layers, 2 weights [layers, 4, NUM_WEIGHT]: qkv, output, gate_up, down
    3 rows, 4 input of the first layer, 5 stream, 6 hidden
    7 query heads, 8 vectors of a slot, 9 channels of a head, 10 cosines, 11 sines, 12 slots,
    13 scale and a soft cap of 0 as float32, 14 groups
    15 channels of qkv, 16 output of attention, 17 gated channels, 18 scratch
    19 aux hidden states, 20 their channels, 21 how many layers they are of
    22 slots of a pool, 23 written: whether a slot lies outside of it
"""

import llvmlite.binding as llvm
import numpy as np
from numba import carray, types

from outrider.ops.compiled.address import pointer_to
from outrider.ops.compiled.attend_keys import MOST_GROUPS, NUM_GROUP, attend
from outrider.ops.compiled.kernel_cache import callback, compiled
from outrider.ops.compiled.openmp import num_threads, thread_index
from outrider.ops.compiled.team_barrier import wait_after_unequal_work, wait_for_team
from outrider.ops.compiled.tile_product import (
    ADDED,
    NUM_WEIGHT,
    multiply,
    multiply_gated,
    rotate_and_store,
)

NUM_HEAD = 24
LAYERS_OUTSIDE = 23
_WHOLE_TEXT = 1 << 30  # layers with other windows do not run here
_WEIGHT_BYTES = 8 * NUM_WEIGHT
_POOLS = NUM_HEAD + MOST_GROUPS * NUM_GROUP
_LAYERS = types.void(types.intp)


@compiled()
def _attention(given: np.ndarray, qkv: int, x_at: int, pool: int) -> None:
    """Norm, projection, rotation and the KV write; then attention."""
    rows, channels, scratch = given[3], given[15], given[18]
    heads, vectors, dim, cos, sin, slots, factors = given[7:14]
    multiply(qkv, rows, x_at, scratch, channels, 0)
    wait_for_team()
    if rotate_and_store(rows, channels, heads, vectors, dim, cos, sin, pool, slots, given[22]):
        given[LAYERS_OUTSIDE] = 1
    wait_for_team()
    stride, out = (heads + vectors) * dim, given[16]
    for number in range(given[14]):
        group = given[NUM_HEAD + number * NUM_GROUP :].ctypes.data
        attend(
            group, channels, stride, heads, vectors, dim, pool, 0, factors, 0, _WHOLE_TEXT, out,
            scratch,
        )  # fmt: skip
    wait_after_unequal_work()


@compiled()
def _copy_stream(given: np.ndarray, depth: int) -> None:
    """Copy the stream after `depth` layers if a drafter reads it: later layers overwrite it."""
    rows, hidden, channels, num = given[3], given[6], given[20], given[21]
    layers = given[_POOLS + given[1] : _POOLS + given[1] + num]
    for place in range(num):
        if layers[place] == depth:
            stream = carray(pointer_to(given[5]), (rows, hidden), np.float32)
            aux = carray(pointer_to(given[19]), (rows, channels), np.float32)
            for row in range(thread_index(), rows, num_threads()):
                aux[row, place * hidden : (place + 1) * hidden] = stream[row]


@callback(_LAYERS)
def run_layers(pointer: int) -> None:
    length = carray(pointer_to(pointer), (1,), np.int64)[0]
    given = carray(pointer_to(pointer), (length,), np.int64)
    layers, rows, stream = given[1], given[3], given[5]
    attended, gated, scratch = given[16], given[17], given[18]
    _copy_stream(given, 0)
    for number in range(layers):
        qkv = given[2] + 4 * number * _WEIGHT_BYTES
        output = qkv + _WEIGHT_BYTES
        gate_up, down = output + _WEIGHT_BYTES, output + 2 * _WEIGHT_BYTES
        x_at = stream if number else given[4]
        _attention(given, qkv, x_at, given[_POOLS + number])
        multiply(output, rows, attended, scratch, stream, ADDED)
        wait_for_team()
        multiply_gated(gate_up, rows, stream, scratch, gated)
        wait_for_team()
        multiply(down, rows, gated, scratch, stream, ADDED)
        wait_for_team()
        _copy_stream(given, number + 1)


# Callers get a symbol: numba would compile the function again inside of each of them.
llvm.add_symbol("outrider_run_layers", run_layers.address)
layers_of_team = types.ExternalFunction("outrider_run_layers", _LAYERS)
