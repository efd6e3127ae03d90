"""Products with a weight of blocks: compiled functions that every thread of a team runs.

A weight, with the norm of its input, is an array of `NUM_WEIGHT` integers (`BlockLinear.fields`):

    0 kind, 1 blocks, 2 bytes of a tile, 3 blocks of a row, 4 inputs, 5 outputs,
    6 weight of the norm with eps behind it, 7 its length or 0

A callback gets the address of such an array, and behind it its own operands:

    8 rows, 9 x, 10 scratch, 11 output
    12 whether to add to the output (`block_product`)
    12 query heads, 13 vectors of a slot, 14 channels of a head, 15 cosines, 16 sines, 17 pool,
    18 slots (`projected_heads`)
"""

import numpy as np
from numba import carray

from outrider.ops.compiled.address import pointer_to
from outrider.ops.compiled.block_kind import TILE
from outrider.ops.compiled.coded_rows import (
    Blocks,
    Coded,
    code_rows,
    multiply_rows,
    own_tiles,
    rows_at_once,
    tile_sums,
)
from outrider.ops.compiled.exponential import exp_of
from outrider.ops.compiled.kernel_cache import callback, compiled
from outrider.ops.compiled.thread_team import num_threads, thread_index, wait_for_team

ADDED = -1
NUM_WEIGHT = 8
_NUM_GIVEN = 19


@compiled()
def _operands(
    weight: np.ndarray, rows: int, x_at: int, scratch: int
) -> tuple[Blocks, Coded, np.ndarray]:
    """The weight, the coded activations, and this thread's sums of tiles."""
    kind, first, tile_bytes, num_blocks, inputs = weight[:5]
    x = carray(pointer_to(x_at), (rows, inputs), np.float32)
    norm_at, norm_length = weight[6], weight[7]
    norm = carray(pointer_to(norm_at), (norm_length + 1,), np.float32)  # eps is behind the weight
    coded = code_rows(x, norm[:norm_length], norm[norm_length], scratch)
    return (kind, first, tile_bytes, num_blocks), coded, tile_sums(scratch, inputs)


@compiled()
def multiply(
    weight: np.ndarray,  # [NUM_WEIGHT]
    rows: int,
    x_at: int,  # address of float32 [rows, inputs]
    scratch: int,  # address of `scratch_bytes`
    out_at: int,  # address of float32 [rows, outputs]
    is_added: bool,
) -> None:
    """norm(x) W^T, added to the output if asked."""
    outputs = weight[5]
    out = carray(pointer_to(out_at), (rows, outputs), np.float32)
    blocks, coded, sums = _operands(weight, rows, x_at, scratch)
    first_tile, last_tile = own_tiles(outputs)
    for tile in range(first_tile, last_tile):
        row, first = 0, tile * TILE
        columns = min(TILE, outputs - first)
        while row < rows:
            num = rows_at_once(rows - row)
            multiply_rows(blocks, tile, coded, row, num, sums.ctypes.data)
            for place in range(num):
                target = out[row + place, first : first + columns]
                if is_added:
                    for column in range(columns):
                        target[column] += sums[0, place, column]
                else:
                    for column in range(columns):
                        target[column] = sums[0, place, column]
            row += num


@compiled()
def multiply_gated(
    weight: np.ndarray,  # [NUM_WEIGHT]
    rows: int,
    x_at: int,
    scratch: int,
    out_at: int,  # address of float32 [rows, outputs / 2]
) -> None:
    """silu(gate) * up of the two halves of norm(x) W^T; halves are whole tiles."""
    outputs = weight[5] // 2
    out = carray(pointer_to(out_at), (rows, outputs), np.float32)
    blocks, coded, sums = _operands(weight, rows, x_at, scratch)
    first_tile, last_tile = own_tiles(outputs)
    for tile in range(first_tile, last_tile):
        row, first = 0, tile * TILE
        while row < rows:
            num = rows_at_once(rows - row)
            multiply_rows(blocks, tile, coded, row, num, sums.ctypes.data)
            up_tile = tile + outputs // TILE
            multiply_rows(blocks, up_tile, coded, row, num, sums[1].ctypes.data)
            for place in range(num):
                for column in range(TILE):
                    gate, up = sums[0, place, column], sums[1, place, column]
                    silu = gate / (np.float32(1.0) + exp_of(-gate))
                    out[row + place, first + column] = silu * up
            row += num


@compiled()
def _rotate(head: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> None:  # [head_dim] all
    """Rotate each pair (i, i + head_dim / 2); the first half of `sin` is negated."""
    half = len(head) // 2
    for place in range(half):
        left, right = head[place], head[place + half]
        head[place] = left * cos[place] + right * sin[place]
        head[place + half] = right * cos[place + half] + left * sin[place + half]


@compiled()
def _store(key: np.ndarray, value: np.ndarray, key_to: np.ndarray, value_to: np.ndarray) -> None:
    """Write a key and its value, [head_dim] all; see `write_kv` for numbers that are not finite."""
    none = np.float32(0.0)
    for place in range(len(key)):
        checked = value[place] + value[place] * value[place] * none
        key_to[place] = key[place] + key[place] * key[place] * none + checked * none
        value_to[place] = checked if checked == checked else none


@compiled()
def rotate_and_store(
    rows: int,
    out_at: int,  # address of float32 [rows, heads + vectors, dim]
    sizes: tuple[int, int, int],  # query heads, vectors of a slot, channels of a head
    angles: tuple[int, int],  # addresses of cosines and sines, float32 [rows, dim] both
    pool_at: int,  # address of float32 [slots, vectors, dim]
    slots_at: int,  # address of int64 [rows]
) -> None:
    """Rotate the queries of x W^T in place; write its keys, likewise rotated, and its values."""
    heads, vectors, dim = sizes
    cos = carray(pointer_to(angles[0]), (rows, dim), np.float32)
    sin = carray(pointer_to(angles[1]), (rows, dim), np.float32)
    pool = carray(pointer_to(pool_at), (1 << 40, vectors, dim), np.float32)
    slots = carray(pointer_to(slots_at), (rows,), np.int64)
    out = carray(pointer_to(out_at), (rows, heads + vectors, dim), np.float32)
    kv_heads = vectors // 2
    for item in range(thread_index(), rows * (heads + kv_heads), num_threads()):
        row, head = item // (heads + kv_heads), item % (heads + kv_heads)
        _rotate(out[row, head], cos[row], sin[row])
        if head >= heads:
            own, stored = head - heads, pool[slots[row]]
            _store(out[row, head], out[row, head + kv_heads], stored[own], stored[own + kv_heads])


@callback("void(voidptr)")
def block_product(pointer: int) -> None:
    given = carray(pointer, (_NUM_GIVEN,), np.int64)
    weight = given[:NUM_WEIGHT]
    multiply(weight, given[8], given[9], given[10], given[11], given[12] == ADDED)


@callback("void(voidptr)")
def gated_product(pointer: int) -> None:
    given = carray(pointer, (_NUM_GIVEN,), np.int64)
    multiply_gated(given[:NUM_WEIGHT], given[8], given[9], given[10], given[11])


@callback("void(voidptr)")
def projected_heads(pointer: int) -> None:
    """Rotated queries from x W^T; keys and values are written to their slots."""
    given = carray(pointer, (_NUM_GIVEN,), np.int64)
    rows, out = given[8], given[11]
    multiply(given[:NUM_WEIGHT], rows, given[9], given[10], out, False)
    wait_for_team()
    sizes, angles = (given[12], given[13], given[14]), (given[15], given[16])
    rotate_and_store(rows, out, sizes, angles, given[17], given[18])
