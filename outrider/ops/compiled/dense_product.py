"""Products with dense weights in float32, in one order of sums: a compiled function of a team.

A product has parts, each with its own rows, weight and outputs: the groups of a grouped layer, the
heads of a latent layer, the experts of a mixture. The array of integers has `NUM_FIELDS`:

    weight: 0 parts, 1 inputs, 2 outputs, 3 kind, 4 address, 5 bytes from part to part, 6 from input
            to input, 7 from tile to tile
    rows:   8 rows of a part, 9 address of int32 [parts] or 0
    x:      10 address, 11 bytes from part to part, 12 from row to row
    output: 13 address, 14 bytes from part to part, 15 from row to row, 16 whether to add to it

With an address in field 9 parts have different numbers of rows, one part after another, and the
integers there say where each part ends. Fields 11 and 14 are then 0.
"""

import numpy as np
from numba import carray

from outrider.ops.compiled.address import pointer_to
from outrider.ops.compiled.block_kind import TILE
from outrider.ops.compiled.dense_tile import MOST_ROWS, MOST_TILES, SUM_ROWS, multiply_dense
from outrider.ops.compiled.kernel_cache import callback, compiled
from outrider.ops.compiled.openmp import num_threads, thread_index
from outrider.ops.compiled.tile_rows import write_tile

NUM_FIELDS = 17
_WIDTH = MOST_TILES * TILE  # outputs that are computed at once


@compiled()
def _rows_at_once(left: int) -> int:
    """The largest group of rows that `multiply_dense` has a loop for."""
    if left >= MOST_ROWS:
        return MOST_ROWS
    if left >= 4:
        return 4
    return 2 if left >= 2 else 1


@compiled()
def _rows_of(given: np.ndarray, part: int) -> tuple[int, int]:
    """The first row of a part in x and in the output, and the number of its rows."""
    if not given[9]:
        return 0, given[8]
    ends = carray(pointer_to(given[9]), (given[0],), np.int32)
    first = int(ends[part - 1]) if part else 0
    return first, int(ends[part]) - first


@compiled()
def _multiply_columns(given: np.ndarray, part: int, place: int, sums: np.ndarray) -> None:
    """All rows of a part by one or two tiles of its weight."""
    inputs, kind, input_bytes, tile_bytes = given[1], given[3], given[6], given[7]
    x_bytes, out_bytes, is_added = given[12], given[15], given[16]
    first, rows = _rows_of(given, part)
    x_at = given[10] + part * given[11] + first * x_bytes
    out_at = given[13] + part * given[14] + first * out_bytes + 4 * place * _WIDTH
    weight_at = given[4] + part * given[5] + place * MOST_TILES * tile_bytes
    columns = min(_WIDTH, given[2] - place * _WIDTH)
    tiles, sums_at, row = (columns + TILE - 1) // TILE, sums.ctypes.data, 0
    while row < rows:
        num, row_at = _rows_at_once(rows - row), x_at + row * x_bytes
        multiply_dense(
            *(kind, num, tiles, row_at, x_bytes),
            *(weight_at, input_bytes, tile_bytes, inputs, sums_at),
        )
        for tile in range(tiles):
            first_at = out_at + row * out_bytes + 4 * tile * TILE
            width = min(TILE, columns - tile * TILE)
            write_tile(sums[tile], first_at, out_bytes, num, width, is_added != 0)
        row += num


@callback("void(voidptr)")
def dense_product(pointer: int) -> None:
    """Threads take turns, so that they share every part: most experts have no rows."""
    given = carray(pointer, (NUM_FIELDS,), np.int64)
    sums = np.empty((MOST_TILES, SUM_ROWS, TILE), np.float32)
    places = (given[2] + _WIDTH - 1) // _WIDTH
    for item in range(thread_index(), given[0] * places, num_threads()):
        _multiply_columns(given, item // places, item % places, sums)
