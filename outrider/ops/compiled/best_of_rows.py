"""The best score of every row and its place: a team's compiled function.

NaN counts as the largest, and of equal scores the first is the best. The array of integers that it
gets:

    0 rows, 1 scores of a row, 2 numbers from row to row, 3 scores float32
    4 the best of each part float32, 5 its place int64, [rows, parts] both, parts of `PART_SCORES`
    6 places int64 and 7 scores float32 [rows]: written
"""

import numpy as np
from numba import carray

from outrider.ops.compiled.address import float32_at, int64_at, pointer_to
from outrider.ops.compiled.kernel_cache import callback, compiled
from outrider.ops.compiled.larger_values import PART, has_larger
from outrider.ops.compiled.openmp import num_threads, thread_index
from outrider.ops.compiled.team_barrier import wait_for_team

NUM_GIVEN = 8
PART_SCORES = 4096  # that a thread searches at once
_LEAST = np.float32(-np.inf)


@compiled()
def find_best(scores: np.ndarray) -> tuple[np.float32, int]:
    best, found = _LEAST, 0
    for first in range(0, len(scores), PART):
        last = min(first + PART, len(scores))
        if not has_larger(scores[first:last], best):
            continue
        for place in range(first, last):
            if not scores[place] <= best:
                best, found = scores[place], place
                if best != best:
                    return best, found
    return best, found


@callback("void(voidptr)")
def find_best_scores(pointer: int) -> None:
    given = carray(pointer, (NUM_GIVEN,), np.int64)
    rows, width, stride, scores_at = given[:4]
    parts = (width + PART_SCORES - 1) // PART_SCORES
    values = carray(pointer_to(given[4]), (rows * parts,), np.float32)
    places = carray(pointer_to(given[5]), (rows * parts,), np.int64)
    for item in range(thread_index(), rows * parts, num_threads()):
        row, start = item // parts, item % parts * PART_SCORES
        size, at = min(PART_SCORES, width - start), scores_at + 4 * (row * stride + start)
        values[item], place = find_best(carray(pointer_to(at), (size,), np.float32))
        places[item] = start + place
    wait_for_team()
    for row in range(thread_index(), rows, num_threads()):
        best, found = find_best(values[row * parts : (row + 1) * parts])
        int64_at(given[6])[row], float32_at(given[7])[row] = places[row * parts + found], best
