"""The activations of a team as 8-bit codes, in compiled functions.

They are normalised before if asked, and brought into the order of the weight's codes.
"""

import numpy as np
from numba import carray

from outrider.ops.compiled.address import pointer_to
from outrider.ops.compiled.block_kind import BLOCK, TILE
from outrider.ops.compiled.dense_tile import SUM_ROWS
from outrider.ops.compiled.kernel_cache import compiled
from outrider.ops.compiled.openmp import num_threads, thread_index
from outrider.ops.compiled.quantise_row import quantise_row
from outrider.ops.compiled.team_barrier import wait_for_team

FEW_ROWS = 8  # every thread quantises these for itself, which takes less time than to wait
_TILE_BYTES = 2 * 4 * SUM_ROWS * TILE  # sums of two tiles
_CODED_BYTES = BLOCK + 2 * 4 + 2 * 4  # codes, scales and sums of a block (`quantise_row`)

Coded = tuple[int, int, int]  # addresses of codes, scales and sums


@compiled()
def own_bytes(inputs: int) -> int:
    """Of one thread: sums of tiles, a row that is normalised, then reordered, and a block."""
    return _TILE_BYTES + 4 * (2 * inputs + BLOCK)


def coded_bytes(inputs: int) -> int:
    """Of a row of codes."""
    return -(-inputs // BLOCK) * _CODED_BYTES


@compiled()
def code_rows(
    x: np.ndarray,  # [rows, inputs] float32
    norm: np.ndarray,  # [inputs] weight of an RMS norm; [0] for none
    eps: np.float32,
    order: np.ndarray,  # [inputs] int64, the input of each code; [0] for their own order
    scratch: int,  # address
) -> Coded:
    """Code all rows; every thread can read the result."""
    rows, inputs = x.shape
    num_blocks = (inputs + BLOCK - 1) // BLOCK
    total, threads, thread = rows * num_blocks, num_threads(), thread_index()
    own = scratch + thread * own_bytes(inputs) + _TILE_BYTES
    wide = carray(pointer_to(own), (2, inputs), np.float32)
    rest = carray(pointer_to(own + wide.nbytes), (BLOCK,), np.float32)
    start, first, last = scratch + threads * own_bytes(inputs), 0, rows
    if rows <= FEW_ROWS:
        start += thread * total * _CODED_BYTES
    else:
        first, last = rows * thread // threads, rows * (thread + 1) // threads
    scales, sums = start + total * BLOCK, start + total * (BLOCK + 2 * 4)
    codes_of = carray(pointer_to(start), (rows, num_blocks * BLOCK), np.int8)
    scales_of = carray(pointer_to(scales), (rows, num_blocks, 2), np.float32)
    sums_of = carray(pointer_to(sums), (rows, num_blocks, 2), np.int32)
    for row in range(first, last):
        source = x[row]
        if len(norm):
            norm_row(source, norm, eps, wide[0])
            source = wide[0]
        if len(order):
            for place in range(inputs):
                wide[1, place] = source[order[place]]
            source = wide[1]
        quantise_row(source, codes_of[row], scales_of[row], sums_of[row], rest)
    if rows > FEW_ROWS:
        wait_for_team()
    return start, scales, sums


@compiled(fastmath={"reassoc", "contract", "nsz"})
def _square_sum(x: np.ndarray) -> np.float32:  # [n]
    """Summed in several parts, which depend on the length alone.

    The loop goes by index: the loads of an iterator become gathers, at 20 times the cost.
    """
    total = np.float32(0.0)
    for place in range(len(x)):
        total += x[place] * x[place]
    return total


@compiled()
def norm_row(x: np.ndarray, weight: np.ndarray, eps: np.float32, out: np.ndarray) -> None:
    """RMS norm of one row, [n] all."""
    mean = _square_sum(x) / np.float32(len(x))
    inverse = np.float32(1.0) / np.sqrt(mean + eps)
    for place in range(len(x)):
        out[place] = x[place] * inverse * weight[place]
