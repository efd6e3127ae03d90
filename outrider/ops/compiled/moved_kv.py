"""Moves the KV of accepted nodes behind a row's history, as a compiled loop of one thread.

The array of integers that it gets has sizes, then addresses:

    0 rows, 1 most emitted, 2 page size, 3 layers, 4 words of 8 bytes of a token in one layer
    5 words of a layer, 6 rows and 7 pages of the page table, 8 its stride
    9 decode rows, 10 lengths, 11 accepted, 12 path, 13 page table: int64
    14 storage: moved
    15 written: how many places were outside of the page table
"""

import numpy as np
from numba import carray

from outrider.ops.compiled.address import int64_at
from outrider.ops.compiled.kernel_cache import callback, compiled
from outrider.ops.compiled.page_slot import page_slot

NUM_OUTSIDE = 15


@compiled()
def _move(given: np.ndarray, source: int, goal: int) -> None:
    storage, words = int64_at(given[14]), given[4]
    for layer in range(given[3]):
        before, after = layer * given[5] + source * words, layer * given[5] + goal * words
        for word in range(words):
            storage[after + word] = storage[before + word]


@callback("void(voidptr)")
def move_accepted_kv(pointer: int) -> None:
    """A node is never before its depth, so no place is written before it has been read."""
    given = carray(pointer, (16,), np.int64)
    pages = given[6], given[7], given[8], given[13], given[2]
    for place in range(given[0]):
        row, length = int64_at(given[9])[place], int64_at(given[10])[place]
        for depth in range(1, int64_at(given[11])[place] + 1):
            node = int64_at(given[12])[place * given[1] + depth]
            if node != depth:
                source, goal = (
                    page_slot(pages, row, length + node),
                    page_slot(pages, row, length + depth),
                )
                if source < 0 or goal < 0:
                    given[NUM_OUTSIDE] += 1
                else:
                    _move(given, source, goal)
