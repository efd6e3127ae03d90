"""Slots of the keys of decode rows, and the mask of their nodes, as a compiled loop of one thread.

The array of integers that it gets has sizes, then addresses:

    0 rows, 1 nodes, 2 keys, 3 page size, 4 pages of a row that may hold keys
    5 rows and 6 stride of the page table, 7 stride of ancestors
    8 decode rows int64 [rows], 9 lengths int64 [rows], 10 ancestors int64 [rows, nodes],
    11 page table int64, 12 slots int64 [rows, keys], 13 mask float32 [rows, nodes, keys]
    14 written: how many rows were outside of the page table
"""

import numpy as np
from numba import carray

from outrider.ops.compiled.address import int64_at, pointer_to
from outrider.ops.compiled.kernel_cache import callback, compiled

NUM_GIVEN = 15
NUM_OUTSIDE = 14
_MOST_NODES = 64  # bits of ancestors


@compiled()
def _place_keys(given: np.ndarray, place: int, slots: np.ndarray) -> None:  # slots [keys]
    """Keys past the pages of a row are on page 0, which is padding."""
    size, row = given[3], int64_at(given[8])[place]
    slots[:] = 0
    if row < 0 or row >= given[5]:
        given[NUM_OUTSIDE] += 1
        return
    for page in range(given[4]):
        first = int64_at(given[11])[row * given[6] + page] * size
        for offset in range(size):
            slots[page * size + offset] = first + offset


@compiled()
def _mask_keys(given: np.ndarray, place: int, mask: np.ndarray) -> None:  # mask [nodes, keys]
    """A node sees the cached tokens and, behind them, its ancestors."""
    keys = mask.shape[1]
    length = min(max(int64_at(given[9])[place], 0), keys)
    for node in range(len(mask)):
        ancestors = int64_at(given[10])[place * given[7] + node]
        mask[node, :length] = np.float32(0.0)
        mask[node, length:] = np.float32(-np.inf)
        for tail in range(min(keys - length, _MOST_NODES)):
            if (ancestors >> tail) & 1:
                mask[node, length + tail] = np.float32(0.0)


@callback("void(voidptr)")
def fill_decode_keys(pointer: int) -> None:
    given = carray(pointer, (NUM_GIVEN,), np.int64)
    rows, nodes, keys = given[0], given[1], given[2]
    slots = carray(pointer_to(given[12]), (rows, keys), np.int64)
    mask = carray(pointer_to(given[13]), (rows, nodes, keys), np.float32)
    for place in range(rows):
        _place_keys(given, place, slots[place])
        _mask_keys(given, place, mask[place])
