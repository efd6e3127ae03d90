"""Tokens, positions and slots of a step's query tokens, as a compiled loop of one thread.

The array of integers that it gets has sizes, then addresses of int64 tensors:

    0 rows, 1 nodes, 2 first node, 3 decode query tokens, 4 chunks, 5 chunk tokens, 6 page size
    7 stride of node tokens, 8 stride of depths
    9 rows, 10 pages and 11 stride of the page table
    12 node tokens, 13 depths, 14 decode rows, 15 lengths
    16 chunk rows, 17 starts, 18 counts, 19 owners, 20 tokens, 21 page table
    22 tokens, 23 positions, 24 slots, 25 query tokens of nodes
    26 index, 27 rows, 28 positions of sampled tokens
    29 written: how many places were outside of the page table or of the step
"""

import numpy as np
from numba import carray

from outrider.ops.compiled.address import int64_at
from outrider.ops.compiled.kernel_cache import callback, compiled
from outrider.ops.compiled.page_slot import page_slot

NUM_GIVEN = 30
NUM_OUTSIDE = 29


@compiled()
def _slot(given: np.ndarray, row: int, position: int) -> int:
    """The slot of a position of a row; 0, on the page of padding, if the table has none."""
    slot = page_slot((given[9], given[10], given[11], given[21], given[6]), row, position)
    if slot < 0:
        given[NUM_OUTSIDE] += 1
        return 0
    return slot


@compiled()
def _place(given: np.ndarray, query: int, token: int, row: int, position: int, stored: int) -> None:
    int64_at(given[22])[query] = max(token, 0)  # an absent node runs as token 0
    int64_at(given[23])[query] = position
    int64_at(given[24])[query] = _slot(given, row, stored)


@compiled()
def _sample(given: np.ndarray, sample: int, query: int, row: int) -> None:
    int64_at(given[26])[sample] = query
    int64_at(given[27])[sample] = row
    int64_at(given[28])[sample] = int64_at(given[23])[query] + 1


@compiled()
def _place_nodes(given: np.ndarray) -> None:
    """A node is seen at its depth (siblings share a position) but stored at its own index."""
    rows, nodes, of_nodes = given[0], given[1], int64_at(given[25])
    is_ragged = given[3] < rows * nodes
    for place in range(rows):
        row, length = int64_at(given[14])[place], int64_at(given[15])[place]
        for node in range(nodes):
            token = int64_at(given[12])[place * given[7] + node]
            position = length + int64_at(given[13])[place * given[8] + node]
            stored, own, query = length + given[2] + node, row, place * nodes + node
            if is_ragged:
                query = of_nodes[query]
                if token < 0:  # padding is row 0 at position 0
                    own, position, stored = 0, 0, 0
            else:
                of_nodes[query] = query
            if query >= given[3]:
                given[NUM_OUTSIDE] += 1
            elif query >= 0:
                _place(given, query, token, own, position, stored)
                _sample(given, query, query, own)


@compiled()
def _place_chunks(given: np.ndarray) -> None:
    """The tokens of all chunks, one chunk after another; the last of each is sampled."""
    first_query, chunks, num_tokens = given[3], given[4], given[5]
    rows, starts, counts = int64_at(given[16]), int64_at(given[17]), int64_at(given[18])
    owners, tokens = int64_at(given[19]), int64_at(given[20])
    first = owner = 0  # the first token of the owner
    for flat in range(num_tokens):
        if owners[flat] < 0 or owners[flat] >= chunks:
            given[NUM_OUTSIDE] += 1
            continue
        if owners[flat] < owner:
            first = owner = 0
        while owner < owners[flat]:
            first, owner = first + counts[owner], owner + 1
        row = rows[owner]
        position = starts[owner] + flat - first if row > 0 else 0
        _place(given, first_query + flat, tokens[flat], row, position, position)
    total = 0
    for chunk in range(chunks):
        total += counts[chunk]
        if total > num_tokens:
            given[NUM_OUTSIDE] += 1
            break
        _sample(given, first_query + chunk, first_query + max(total - 1, 0), rows[chunk])


@callback("void(voidptr)")
def place_query_tokens(pointer: int) -> None:
    given = carray(pointer, (NUM_GIVEN,), np.int64)
    _place_nodes(given)
    _place_chunks(given)
