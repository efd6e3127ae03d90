"""Products with a weight of blocks: compiled functions that every thread of a team runs.

All take the address of an array of integers, which `BlockLinear` writes:

    0 kind, 1 blocks, 2 bytes of a tile, 3 blocks of a row, 4 rows, 5 inputs, 6 x, 7 scratch,
    8 weight of the norm with eps behind it, 9 its length or 0, 10 output, 11 columns of the output
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
_NUM_GIVEN = 19


@compiled()
def _operands(given: np.ndarray) -> tuple[Blocks, Coded, np.ndarray]:
    """The weight, the coded activations, and this thread's sums of tiles."""
    kind, first, tile_bytes, num_blocks, rows, inputs = given[:6]
    x = carray(pointer_to(given[6]), (rows, inputs), np.float32)
    scratch, norm_at, norm_length = given[7], given[8], given[9]
    norm = carray(pointer_to(norm_at), (norm_length + 1,), np.float32)  # eps is behind the weight
    coded = code_rows(x, norm[:norm_length], norm[norm_length], scratch)
    return (kind, first, tile_bytes, num_blocks), coded, tile_sums(scratch, inputs)


@compiled()
def _multiply(given: np.ndarray) -> None:
    """x W^T, added to the output if asked."""
    rows, outputs, is_added = given[4], given[11], given[12] == ADDED
    out = carray(pointer_to(given[10]), (rows, outputs), np.float32)
    blocks, coded, sums = _operands(given)
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


@callback("void(voidptr)")
def block_product(pointer: int) -> None:
    _multiply(carray(pointer, (_NUM_GIVEN,), np.int64))


@callback("void(voidptr)")
def gated_product(pointer: int) -> None:
    """silu(gate) * up of the two halves of x W^T; halves are whole tiles."""
    given = carray(pointer, (_NUM_GIVEN,), np.int64)
    rows, outputs = given[4], given[11]
    out = carray(pointer_to(given[10]), (rows, outputs), np.float32)
    blocks, coded, sums = _operands(given)
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
def _rotate_and_store(given: np.ndarray) -> None:
    """Rotate the queries of x W^T in place; write its keys, likewise rotated, and its values."""
    rows, heads, vectors, dim = given[4], given[12], given[13], given[14]
    cos = carray(pointer_to(given[15]), (rows, dim), np.float32)
    sin = carray(pointer_to(given[16]), (rows, dim), np.float32)
    pool = carray(pointer_to(given[17]), (1 << 40, vectors, dim), np.float32)
    slots = carray(pointer_to(given[18]), (rows,), np.int64)
    out = carray(pointer_to(given[10]), (rows, heads + vectors, dim), np.float32)
    kv_heads = vectors // 2
    for item in range(thread_index(), rows * (heads + kv_heads), num_threads()):
        row, head = item // (heads + kv_heads), item % (heads + kv_heads)
        _rotate(out[row, head], cos[row], sin[row])
        if head >= heads:
            own, stored = head - heads, pool[slots[row]]
            _store(out[row, head], out[row, head + kv_heads], stored[own], stored[own + kv_heads])


@callback("void(voidptr)")
def projected_heads(pointer: int) -> None:
    """Rotated queries from x W^T; keys and values are written to their slots."""
    given = carray(pointer, (_NUM_GIVEN,), np.int64)
    _multiply(given)
    wait_for_team()
    _rotate_and_store(given)
