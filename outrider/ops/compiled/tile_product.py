"""Products with a weight in tiles: compiled functions that every thread of a team runs.

A weight, with the norm of its input, is an array of `NUM_WEIGHT` integers (`TiledProduct.fields`):

    0 tiles [tiles, NUM_TILE], 1 blocks of a row or 0 for dense numbers, 2 inputs, 3 outputs,
    4 weight of the norm with eps behind it, 5 its length or 0, 6 order of the inputs, 7 its length
    or 0

A callback gets the address of such an array, and behind it its own operands:

    rows, x, scratch, output
    whether to add to the output (`tile_product`)
    query heads, vectors of a slot, channels of a head, cosines, sines, pool, slots, slots of the
    pool, written: whether a slot lies outside of the pool (`projected_heads`)
"""

import llvmlite.binding as llvm
import numpy as np
from numba import carray, types

from outrider.ops.compiled.address import pointer_to
from outrider.ops.compiled.block_kind import TILE
from outrider.ops.compiled.exponential import exp_of
from outrider.ops.compiled.kernel_cache import callback, compiled
from outrider.ops.compiled.openmp import num_threads, thread_index
from outrider.ops.compiled.team_barrier import wait_for_team
from outrider.ops.compiled.tile_rows import (
    NO_TILE,
    Rows,
    Tiles,
    multiply_rows,
    own_tiles,
    read_rows,
    rows_at_once,
    tile_sums,
    write_tile,
)

ADDED = -1
NUM_WEIGHT = 8
_NUM_PRODUCT = NUM_WEIGHT + 5
_NUM_GATED = NUM_WEIGHT + 4
_NUM_HEADS = NUM_WEIGHT + 13
HEADS_OUTSIDE = _NUM_HEADS - 1
_PRODUCT = types.void(*[types.intp] * 6)
_GATED = types.void(*[types.intp] * 5)
_STORE = types.intp(*[types.intp] * 10)


@compiled()
def _operands(
    weight: np.ndarray, rows: int, x_at: int, scratch: int
) -> tuple[Tiles, Rows, np.ndarray]:
    """The weight, the activations as it reads them, and this thread's sums of tiles."""
    tiles_at, num_blocks, inputs, _, norm_at, norm_length, order_at, order_length = weight
    x = carray(pointer_to(x_at), (rows, inputs), np.float32)
    norm = carray(pointer_to(norm_at), (norm_length + 1,), np.float32)  # eps is behind the weight
    order = carray(pointer_to(order_at), (order_length,), np.int64)
    tiles = tiles_at, num_blocks
    read = read_rows(tiles, x, x_at, norm[:norm_length], norm[norm_length], order, scratch)
    return tiles, read, tile_sums(scratch, inputs)


@callback(_PRODUCT)
def _multiply(
    weight_at: int,  # address of int64 [NUM_WEIGHT]
    rows: int,
    x_at: int,  # address of float32 [rows, inputs]
    scratch: int,  # address of `scratch_bytes`
    out_at: int,  # address of float32 [rows, outputs]
    added: int,  # ADDED: to the output
) -> None:
    """norm(x) W^T"""
    weight = carray(pointer_to(weight_at), (NUM_WEIGHT,), np.int64)
    outputs, is_added = weight[3], added == ADDED
    tiles, read, sums = _operands(weight, rows, x_at, scratch)
    first_tile, last_tile = own_tiles(outputs)
    for left in range(first_tile, last_tile, 2):
        row, right = 0, left + 1 if left + 1 < last_tile else NO_TILE
        while row < rows:
            num, at = rows_at_once(rows - row), out_at + 4 * (row * outputs + left * TILE)
            multiply_rows(tiles, left, right, read, row, num, sums.ctypes.data)
            columns = min(TILE, outputs - left * TILE)
            write_tile(sums[0], at, 4 * outputs, num, columns, is_added)
            if right != NO_TILE:
                columns = min(TILE, outputs - right * TILE)
                write_tile(sums[1], at + 4 * TILE, 4 * outputs, num, columns, is_added)
            row += num


@callback(_GATED)
def _multiply_gated(
    weight_at: int,  # address of int64 [NUM_WEIGHT]
    rows: int,
    x_at: int,
    scratch: int,
    out_at: int,  # address of float32 [rows, outputs / 2]
) -> None:
    """silu(gate) * up of the two halves of norm(x) W^T; halves are whole tiles."""
    weight = carray(pointer_to(weight_at), (NUM_WEIGHT,), np.int64)
    outputs = weight[3] // 2
    out = carray(pointer_to(out_at), (rows, outputs), np.float32)
    tiles, read, sums = _operands(weight, rows, x_at, scratch)
    first_tile, last_tile = own_tiles(outputs)
    for tile in range(first_tile, last_tile):
        row, up_tile = 0, tile + outputs // TILE
        while row < rows:
            num = rows_at_once(rows - row)
            multiply_rows(tiles, tile, up_tile, read, row, num, sums.ctypes.data)
            for place in range(num):
                for column in range(TILE):
                    gate, up = sums[0, place, column], sums[1, place, column]
                    silu = gate / (np.float32(1.0) + exp_of(-gate))
                    out[row + place, tile * TILE + column] = silu * up
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


@callback(_STORE)
def _rotate_and_store(
    rows: int,
    out_at: int,  # address of float32 [rows, heads + vectors, dim]
    heads: int,  # of queries
    vectors: int,  # of a slot
    dim: int,  # channels of a head
    cos_at: int,  # address of float32 [rows, dim]
    sin_at: int,  # likewise
    pool_at: int,  # address of float32 [slots, vectors, dim]
    slots_at: int,  # address of int64 [rows]
    num_slots: int,  # of the pool
) -> int:
    """Rotate the queries of x W^T in place; write its keys, likewise rotated, and its values.

    Returns whether a slot lies outside of the pool, where nothing is written.
    """
    cos = carray(pointer_to(cos_at), (rows, dim), np.float32)
    sin = carray(pointer_to(sin_at), (rows, dim), np.float32)
    pool = carray(pointer_to(pool_at), (num_slots, vectors, dim), np.float32)
    slots = carray(pointer_to(slots_at), (rows,), np.int64)
    out = carray(pointer_to(out_at), (rows, heads + vectors, dim), np.float32)
    kv_heads, is_outside = vectors // 2, 0
    for item in range(thread_index(), rows * (heads + kv_heads), num_threads()):
        row, head = item // (heads + kv_heads), item % (heads + kv_heads)
        _rotate(out[row, head], cos[row], sin[row])
        if head >= heads:
            own, slot = head - heads, slots[row]
            if slot < 0 or slot >= num_slots:
                is_outside = 1
                continue
            stored = pool[slot]
            _store(out[row, head], out[row, head + kv_heads], stored[own], stored[own + kv_heads])
    return is_outside


# Callers get symbols: numba would compile these functions again inside of each of them.
llvm.add_symbol("outrider_multiply", _multiply.address)
llvm.add_symbol("outrider_multiply_gated", _multiply_gated.address)
llvm.add_symbol("outrider_rotate_and_store", _rotate_and_store.address)
multiply = types.ExternalFunction("outrider_multiply", _PRODUCT)
multiply_gated = types.ExternalFunction("outrider_multiply_gated", _GATED)
rotate_and_store = types.ExternalFunction("outrider_rotate_and_store", _STORE)


@callback("void(voidptr)")
def tile_product(pointer: int) -> None:
    given = carray(pointer, (_NUM_PRODUCT,), np.int64)
    rows, x, scratch, out, added = given[NUM_WEIGHT:]
    multiply(given.ctypes.data, rows, x, scratch, out, added)


@callback("void(voidptr)")
def gated_product(pointer: int) -> None:
    given = carray(pointer, (_NUM_GATED,), np.int64)
    rows, x, scratch, out = given[NUM_WEIGHT:]
    multiply_gated(given.ctypes.data, rows, x, scratch, out)


@callback("void(voidptr)")
def projected_heads(pointer: int) -> None:
    """Rotated queries from x W^T; keys and values are written to their slots."""
    given = carray(pointer, (_NUM_HEADS,), np.int64)
    rows, x, scratch, out, heads, vectors, dim, cos, sin, pool, slots, num = given[NUM_WEIGHT:-1]
    multiply(given.ctypes.data, rows, x, scratch, out, 0)
    wait_for_team()
    if rotate_and_store(rows, out, heads, vectors, dim, cos, sin, pool, slots, num):
        given[HEADS_OUTSIDE] = 1
