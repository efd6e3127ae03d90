"""What the target accepts of draft trees, and the rows after it, as compiled loops of one thread.

The array of integers of `verify_rows` has sizes, then addresses of int64 tensors:

    0 rows, 1 nodes, 2 most emitted, strides of 3 tokens, 4 parents, 5 depths, 6 ancestors, 7 choice
    8 tokens, 9 parents, 10 depths, 11 ancestors, 12 choice
    13 path, 14 accepted, 15 emitted, 16 drafted: written

That of `commit_row_states`:

    0 decode rows, 1 chunks, 2 most emitted, 3 rows of the table
    4 decode rows, 5 lengths, 6 accepted, 7 emitted
    8 chunk rows, 9 starts, 10 counts, 11 choice
    12 lengths and 13 last tokens of the table: written
    14 written: how many rows were outside of the table
"""

import numpy as np
from numba import carray

from outrider.ops.compiled.address import int64_at
from outrider.ops.compiled.kernel_cache import callback, compiled

NUM_OUTSIDE = 14
_ONE = np.int64(1)


@compiled()
def _agreed(given: np.ndarray, row: int) -> np.int64:
    """A bit for every node whose token the target chose after its parent, and for node 0."""
    tokens, parents, choice = int64_at(given[8]), int64_at(given[9]), int64_at(given[12])
    agreed = np.int64(0)
    for node in range(given[1]):
        parent = parents[row * given[4] + node]
        if parent < 0 or tokens[row * given[3] + node] == choice[row * given[7] + parent]:
            agreed |= _ONE << node
    return agreed


@compiled()
def _tip(given: np.ndarray, row: int, agreed: np.int64) -> int:
    """The deepest node whose whole path is agreed."""
    depths, ancestors = int64_at(given[10]), int64_at(given[11])
    tip, deepest = 0, np.int64(-1)
    for node in range(given[1]):
        path, depth = ancestors[row * given[6] + node], depths[row * given[5] + node]
        if (path & agreed) == path and depth > deepest:
            tip, deepest = node, depth
    return tip


@compiled()
def _drafted(given: np.ndarray, row: int) -> int:
    tokens, drafted = int64_at(given[8]), 0
    for node in range(1, given[1]):
        drafted += tokens[row * given[3] + node] >= 0
    return drafted


@callback("void(voidptr)")
def verify_rows(pointer: int) -> None:
    given = carray(pointer, (17,), np.int64)
    rows, nodes, most = given[0], given[1], given[2]
    depths, ancestors, choice = int64_at(given[10]), int64_at(given[11]), int64_at(given[12])
    path, emitted = int64_at(given[13]), int64_at(given[15])
    for row in range(rows):
        tip = _tip(given, row, _agreed(given, row))
        first = row * most
        for place in range(most):
            path[first + place] = tip
        bits = ancestors[row * given[6] + tip]
        for node in range(nodes):
            depth = depths[row * given[5] + node]
            if (bits >> node) & 1 and depth < most:
                path[first + depth] = node
        for place in range(most):
            emitted[first + place] = choice[row * given[7] + path[first + place]]
        int64_at(given[14])[row] = depths[row * given[5] + tip]
        int64_at(given[16])[row] = _drafted(given, row)


@compiled()
def _write(given: np.ndarray, row: int, length: int, token: int) -> None:
    """Row 0 stays empty: padding writes zeros to it."""
    if row < 0 or row >= given[3]:
        given[NUM_OUTSIDE] += 1
        return
    int64_at(given[12])[row] = length if row > 0 else 0
    int64_at(given[13])[row] = token if row > 0 else 0


@callback("void(voidptr)")
def commit_row_states(pointer: int) -> None:
    given = carray(pointer, (15,), np.int64)
    for place in range(given[0]):
        accepted = int64_at(given[6])[place]
        bonus = int64_at(given[7])[place * given[2] + accepted]
        length = int64_at(given[5])[place] + accepted + 1
        _write(given, int64_at(given[4])[place], length, bonus)
    for place in range(given[1]):
        length = int64_at(given[9])[place] + int64_at(given[10])[place]
        _write(given, int64_at(given[8])[place], length, int64_at(given[11])[place])
