"""x W^T for a weight of blocks: a compiled function that every thread of a team runs."""

import numpy as np
from numba import carray, cfunc, njit

from outrider.ops.compiled.address import pointer_to
from outrider.ops.compiled.block_kind import BLOCK, TILE
from outrider.ops.compiled.block_tile import multiply_tile
from outrider.ops.compiled.quantise_row import quantise_row
from outrider.ops.compiled.thread_team import num_threads, thread_index, wait_for_team

FEW_ROWS = 8  # every thread quantises these for itself, which takes less time than to wait
_TILE_BYTES = 4 * 8 * TILE  # sums of a tile and the most rows, for each thread
_CODED_BYTES = BLOCK + 4 + 4  # codes, scale and sum of a block of activations


def scratch_bytes(*, rows: int, inputs: int, threads: int) -> int:
    """The size of the memory that a product needs besides its operands."""
    copies = threads if rows <= FEW_ROWS else 1
    return threads * _TILE_BYTES + copies * rows * -(-inputs // BLOCK) * _CODED_BYTES


@njit(cache=True)  # type: ignore[untyped-decorator]
def quantise_rows_of_team(
    x: np.ndarray,  # [rows, inputs] float32
    scratch: int,  # address
) -> tuple[int, int, int]:
    """The addresses of the codes, scales and sums of all rows; every thread can read them."""
    rows, inputs = x.shape
    num_blocks = (inputs + BLOCK - 1) // BLOCK
    total, threads, thread = rows * num_blocks, num_threads(), thread_index()
    first, last = 0, rows
    start = scratch + threads * _TILE_BYTES
    if rows <= FEW_ROWS:
        start += thread * total * _CODED_BYTES
    else:
        first, last = rows * thread // threads, rows * (thread + 1) // threads
    scales, sums = start + total * BLOCK, start + total * (BLOCK + 4)
    codes_of = carray(pointer_to(start), (rows, num_blocks * BLOCK), np.int8)
    scales_of = carray(pointer_to(scales), (rows, num_blocks), np.float32)
    sums_of = carray(pointer_to(sums), (rows, num_blocks), np.int32)
    for row in range(first, last):
        quantise_row(x[row], codes_of[row], scales_of[row], sums_of[row])
    if rows > FEW_ROWS:
        wait_for_team()
    return start, scales, sums


@njit(cache=True)  # type: ignore[untyped-decorator]
def rows_at_once(left: int) -> int:
    """The largest group of rows that the kernels have."""
    if left >= 8:
        return 8
    if left >= 4:
        return 4
    return 2 if left >= 2 else 1


@cfunc("void(voidptr)", cache=True)  # type: ignore[untyped-decorator]
def block_product(pointer: int) -> None:
    """See `BlockLinear`, which passes these arguments."""
    given = carray(pointer, (10,), np.int64)
    kind, blocks, rows, inputs, outputs = given[0], given[1], given[2], given[3], given[4]
    x = carray(pointer_to(given[5]), (rows, inputs), np.float32)
    out = carray(pointer_to(given[6]), (rows, outputs), np.float32)
    has_residual = given[7] != 0
    residual = carray(pointer_to(given[7]), (rows, outputs), np.float32)
    scratch, tile_bytes = given[8], given[9]
    thread, threads = thread_index(), num_threads()
    num_blocks, num_tiles = (inputs + BLOCK - 1) // BLOCK, (outputs + TILE - 1) // TILE
    codes, scales, sums = quantise_rows_of_team(x, scratch)
    sums_at = scratch + thread * _TILE_BYTES
    tile_sums = carray(pointer_to(sums_at), (8, TILE), np.float32)
    for tile in range(num_tiles * thread // threads, num_tiles * (thread + 1) // threads):
        row, first = 0, tile * TILE
        columns = min(TILE, outputs - first)
        while row < rows:
            num, at = rows_at_once(rows - row), row * num_blocks
            multiply_tile(
                kind,
                num,
                blocks + tile * tile_bytes,
                codes + at * BLOCK,
                scales + at * 4,
                sums + at * 4,
                num_blocks,
                sums_at,
            )
            for place in range(num):
                if has_residual:
                    for column in range(columns):
                        out[row + place, first + column] = (
                            residual[row + place, first + column] + tile_sums[place, column]
                        )
                else:
                    for column in range(columns):
                        out[row + place, first + column] = tile_sums[place, column]
            row += num
