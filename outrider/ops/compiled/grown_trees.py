"""A level of draft trees, and the trees of the best candidates, as compiled loops of one thread.

The array of integers of `grow_tree_level` has sizes, then addresses; floats are float32, the rest
is int64:

    0 rows, 1 branches, 2 topk, 3 depth, 4 number of the level's first candidate
    5 scratch node of its first branch, 6 branches that grow next
    strides of 7 candidates, 8 tip scores, 9 tip numbers, 10 tip ancestors, 11 budgets
    12 tip scores, 13 tip numbers, 14 tip ancestors, 15 log-probabilities, 16 tokens
    17 budgets, 18 lengths
    19 scores, 20 tokens, 21 parents of the level's candidates: written
    22 scores of the next tips, 23 what else is known of them, [6, rows, next]: written
    24 whether tips past the topk of their row grow, too

That of `select_tree_nodes`:

    0 rows, 1 candidates, 2 nodes, 3 stride of budgets, strides of 4 scores, 5 tokens, 6 parents
    7 root, 8 scores, 9 tokens, 10 parents, 11 budgets
    12 the tree and the candidates of its nodes, [5, rows, nodes]: written
"""

import numpy as np
from numba import carray

from outrider.ops.compiled.address import float32_at, int64_at
from outrider.ops.compiled.kernel_cache import callback, compiled

# Rows of what is written about next tips, and about trees.
NUMBERS, PARENT_TIPS, POSITIONS, TIP_TOKENS, TIP_DEPTHS, TIP_ANCESTORS = range(6)
TOKENS, PARENTS, DEPTHS, ANCESTORS, CANDIDATES = range(5)
_STEP_COST = np.float32(1e-3)  # as in `grow_level`
_NEVER = np.float32(-np.inf)
_ONE = np.int64(1)


@compiled()
def _best(scores: np.ndarray, first: int, num: int, taken: np.ndarray) -> int:
    """The best candidate that is not taken; of equals the first. -1: none is left."""
    best = -1
    for place in range(num):
        if not taken[place] and (best < 0 or scores[first + place] > scores[first + best]):
            best = place
    return best


@compiled()
def _expand(given: np.ndarray, row: int) -> None:
    """The children of a row's tips. A child scores below its parent, however large the scores."""
    branches, topk, budget = given[1], given[2], int64_at(given[17])
    own_topk = budget[given[11] + row] if given[3] <= budget[row] else 0
    for branch in range(branches):
        score = float32_at(given[12])[row * given[8] + branch]
        ceiling = np.nextafter(score, _NEVER)
        for rank in range(topk):
            source = (row * branches + branch) * topk + rank
            place = row * given[7] + branch * topk + rank
            value = float32_at(given[15])[source]
            joint = min(np.float32(np.float32(score + value) - _STEP_COST), ceiling)
            is_allowed = rank < own_topk and not np.isnan(value)
            float32_at(given[19])[place] = joint if is_allowed else _NEVER
            int64_at(given[20])[place] = int64_at(given[16])[source]
            int64_at(given[21])[place] = int64_at(given[13])[row * given[9] + branch]


@compiled()
def _place_tip(given: np.ndarray, row: int, rank: int, index: int) -> None:
    rows, num_tips, depth, tip = given[0], given[6], given[3], index // given[2]
    candidate, place, size = row * given[7] + index, row * num_tips + rank, rows * num_tips
    is_alive = given[24] or rank < int64_at(given[17])[given[11] + row]
    float32_at(given[22])[place] = float32_at(given[19])[candidate] if is_alive else _NEVER
    node = min(rank + given[5], 63)  # wide levels have more nodes, and nothing reads their bits
    bits = int64_at(given[14])[row * given[10] + tip] | (_ONE << node)
    written = int64_at(given[23])
    written[NUMBERS * size + place] = given[4] + index
    written[PARENT_TIPS * size + place] = tip
    written[POSITIONS * size + place] = int64_at(given[18])[row] + depth + 1
    written[TIP_TOKENS * size + place] = int64_at(given[20])[candidate]
    written[TIP_DEPTHS * size + place] = depth - 1
    written[TIP_ANCESTORS * size + place] = bits


@callback("void(voidptr)")
def grow_tree_level(pointer: int) -> None:
    given = carray(pointer, (25,), np.int64)
    width, scores = given[1] * given[2], float32_at(given[19])
    for row in range(given[0]):
        _expand(given, row)
        taken = np.zeros(width, np.bool_)
        for rank in range(given[6]):
            index = _best(scores, row * given[7], width, taken)
            taken[index] = True
            _place_tip(given, row, rank, index)


@compiled()
def _choose(given: np.ndarray, row: int) -> np.ndarray:
    """The candidates of a row's best nodes, in ascending order."""
    width, scores, first = given[1], float32_at(given[8]), row * given[4]
    wanted = min(given[2], int64_at(given[11])[2 * given[3] + row]) - 1
    taken, num = np.zeros(width, np.bool_), 0
    for _ in range(min(wanted, width)):
        best = _best(scores, first, width, taken)
        if not scores[first + best] > _NEVER:
            break
        taken[best] = True
        num += 1
    chosen, place = np.empty(num, np.int64), 0
    for candidate in range(width):
        if taken[candidate]:
            chosen[place] = candidate
            place += 1
    return chosen


@compiled()
def _place_node(given: np.ndarray, row: int, node: int, chosen: np.ndarray) -> None:
    """An absent node is a child of node 0 with token -1."""
    first, size, written = row * given[2], given[0] * given[2], int64_at(given[12])
    place, parent, token, candidate = first + node, 0, np.int64(-1), np.int64(-1)
    if node <= len(chosen):
        candidate = chosen[node - 1]
        token = int64_at(given[9])[row * given[5] + candidate]
        above = int64_at(given[10])[row * given[6] + candidate]
        if above >= 0:
            parent = 1
            while parent < node and chosen[parent - 1] < above:
                parent += 1
    written[TOKENS * size + place] = token
    written[PARENTS * size + place] = parent
    written[DEPTHS * size + place] = written[DEPTHS * size + first + parent] + 1
    written[ANCESTORS * size + place] = written[ANCESTORS * size + first + parent] | (_ONE << node)
    written[CANDIDATES * size + place] = candidate


@callback("void(voidptr)")
def select_tree_nodes(pointer: int) -> None:
    given = carray(pointer, (13,), np.int64)
    nodes, size, written = given[2], given[0] * given[2], int64_at(given[12])
    for row in range(given[0]):
        first = row * nodes
        written[TOKENS * size + first] = int64_at(given[7])[row]
        written[PARENTS * size + first] = written[CANDIDATES * size + first] = -1
        written[DEPTHS * size + first], written[ANCESTORS * size + first] = 0, 1
        chosen = _choose(given, row)
        for node in range(1, nodes):
            _place_node(given, row, node, chosen)
