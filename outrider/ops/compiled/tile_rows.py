"""Rows of activations times tiles of a weight, in compiled functions that a team runs.

A tile has 16 outputs: of blocks (`block_tile`), or of dense numbers (`dense_tile`). Activations are
normalised before if asked. For blocks they become 8-bit codes; for dense tiles they stay float32.
"""

import numpy as np
from numba import carray

from outrider.ops.compiled.address import pointer_to
from outrider.ops.compiled.block_kind import BLOCK, TILE
from outrider.ops.compiled.block_tile import multiply_tile
from outrider.ops.compiled.coded_rows import FEW_ROWS, code_rows, coded_bytes, norm_row, own_bytes
from outrider.ops.compiled.dense_tile import MOST_ROWS, MOST_TILES, SUM_ROWS, multiply_dense
from outrider.ops.compiled.kernel_cache import compiled
from outrider.ops.compiled.openmp import num_threads, thread_index
from outrider.ops.compiled.team_barrier import wait_for_team

GROUP = SUM_ROWS  # rows that are multiplied at once, at most
NUM_TILE = 3  # numbers of a tile: the index of its kind, its address, and as below
# of blocks: log2 of its span; of dense numbers: bytes from input to input
NO_TILE = -1

Tiles = tuple[int, int]  # address of int64 [tiles, NUM_TILE], blocks of a tile: 0 for dense numbers
# Of blocks the addresses of codes, scales and sums (`code_rows`). For dense tiles the address of
# float32 [rows, inputs], and the inputs.
Rows = tuple[int, int, int]


def scratch_bytes(*, rows: int, inputs: int, is_dense: bool, threads: int) -> int:
    """The size of the memory that a product needs besides its operands."""
    copies = threads if rows <= FEW_ROWS else 1
    row_bytes = 4 * inputs if is_dense else coded_bytes(inputs)
    return threads * own_bytes(inputs) + copies * rows * row_bytes


@compiled()
def read_rows(
    tiles: Tiles,
    x: np.ndarray,  # [rows, inputs] float32
    x_at: int,  # its address
    norm: np.ndarray,  # [inputs] weight of an RMS norm; [0] for none
    eps: np.float32,
    order: np.ndarray,  # [inputs] int64, the input of each code; [0] for their own order
    scratch: int,  # address
) -> Rows:
    """All rows as the weight reads them; every thread can read the result."""
    if tiles[1]:
        return code_rows(x, norm, eps, order, scratch)
    if not len(norm):
        return x_at, x.shape[1], 0
    return _norm_rows(x, norm, eps, scratch), x.shape[1], 0


@compiled()
def _norm_rows(x: np.ndarray, norm: np.ndarray, eps: np.float32, scratch: int) -> int:
    """The address of the normalised rows. Few rows are normalised by every thread for itself."""
    rows, inputs = x.shape
    threads, thread = num_threads(), thread_index()
    start: int = scratch + threads * own_bytes(inputs)
    first, last = 0, rows
    if rows <= FEW_ROWS:
        start += thread * rows * inputs * 4
    else:
        first, last = rows * thread // threads, rows * (thread + 1) // threads
    out = carray(pointer_to(start), (rows, inputs), np.float32)
    for row in range(first, last):
        norm_row(x[row], norm, eps, out[row])
    if rows > FEW_ROWS:
        wait_for_team()
    return start


@compiled()
def tile_sums(scratch: int, inputs: int) -> np.ndarray:  # [2, GROUP, TILE] float32
    """Where this thread puts the sums of two tiles."""
    at = scratch + thread_index() * own_bytes(inputs)
    sums: np.ndarray = carray(pointer_to(at), (2, GROUP, TILE), np.float32)
    return sums


@compiled()
def own_tiles(outputs: int) -> tuple[int, int]:
    """The first and the last tile, not included, that this thread multiplies."""
    tiles, thread, threads = (outputs + TILE - 1) // TILE, thread_index(), num_threads()
    return tiles * thread // threads, tiles * (thread + 1) // threads


@compiled()
def rows_at_once(left: int) -> int:
    """The largest group of rows that the kernels have."""
    if left >= GROUP:
        return GROUP
    if left >= 4:
        return 4
    return 2 if left >= 2 else 1


@compiled()
def multiply_rows(
    tiles: Tiles,
    left: int,
    right: int,  # NO_TILE: the left one alone
    rows: Rows,
    row: int,
    num: int,
    out: int,  # address of [2, GROUP, TILE]
) -> None:
    """Products of one tile, or of two, with `num` rows from `row` on."""
    if tiles[1]:
        _multiply_blocks(tiles, left, rows, row, num, out)
        if right != NO_TILE:
            _multiply_blocks(tiles, right, rows, row, num, out + 4 * GROUP * TILE)
        return
    for done in range(0, num, MOST_ROWS):
        part, sums = min(num - done, MOST_ROWS), out + 4 * TILE * done
        if MOST_TILES > 1 and right != NO_TILE:
            _multiply_numbers(tiles, left, right, rows, row + done, part, sums)
        else:
            _multiply_numbers(tiles, left, NO_TILE, rows, row + done, part, sums)
            if right != NO_TILE:
                second = sums + 4 * GROUP * TILE
                _multiply_numbers(tiles, right, NO_TILE, rows, row + done, part, second)


@compiled()
def _tile(tiles: Tiles, tile: int) -> np.ndarray:  # [NUM_TILE]
    numbers: np.ndarray = carray(pointer_to(tiles[0] + 8 * NUM_TILE * tile), (NUM_TILE,), np.int64)
    return numbers


@compiled()
def _multiply_blocks(tiles: Tiles, tile: int, rows: Rows, row: int, num: int, out: int) -> None:
    (kind, first, shift), (codes, scales, sums), num_blocks = _tile(tiles, tile), rows, tiles[1]
    at = row * num_blocks
    multiply_tile(
        *(kind, num, shift, first),
        *(codes + at * BLOCK, scales + at * 2 * 4, sums + at * 2 * 4),
        *(num_blocks, out),
    )


@compiled()
def _multiply_numbers(
    tiles: Tiles, left: int, right: int, rows: Rows, row: int, num: int, out: int
) -> None:
    (kind, first, input_bytes), (x, inputs, _) = _tile(tiles, left), rows
    tile_bytes, num_tiles = 0, 1
    if right != NO_TILE:
        tile_bytes, num_tiles = _tile(tiles, right)[1] - first, 2
    multiply_dense(
        *(kind, num, num_tiles, x + row * inputs * 4, inputs * 4),
        *(first, input_bytes, tile_bytes, inputs, out),
    )


@compiled()
def write_tile(
    sums: np.ndarray,  # [GROUP, TILE] of one tile
    out_at: int,  # address of the first number
    out_bytes: int,  # from row to row
    rows: int,
    width: int,
    is_added: bool,
) -> None:
    """The sums become columns of the output, or are added to them."""
    for row in range(rows):
        target = carray(pointer_to(out_at + row * out_bytes), (TILE,), np.float32)
        if is_added:
            for column in range(width):
                target[column] += sums[row, column]
        else:
            for column in range(width):
                target[column] = sums[row, column]
