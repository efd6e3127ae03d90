"""The best tokens of draft logits and their log-probabilities: a team's compiled function.

The array of integers that it gets has sizes, then addresses:

    0 rows, 1 tokens of a row, 2 best of a row, 3 numbers from row to row of the logits
    4 logits float32, 5 the target's ids int64
    6 log-probabilities float32 and 7 ids int64 [rows, best]: written
"""

import numpy as np
from numba import carray

from outrider.ops.compiled.address import float32_at, int64_at, pointer_to
from outrider.ops.compiled.exponential import exp_of
from outrider.ops.compiled.kernel_cache import callback, compiled
from outrider.ops.compiled.larger_values import PART, has_larger
from outrider.ops.compiled.openmp import num_threads, thread_index

NUM_GIVEN = 8
_LEAST_EXPONENT = np.float32(-87.0)  # exp of it adds nothing to a sum of at least 1


@compiled(fastmath={"reassoc", "contract", "nsz"})
def _sum_of_exponentials(logits: np.ndarray, largest: np.float32) -> np.float32:
    total = np.float32(0.0)
    for place in range(len(logits)):
        total += exp_of(max(logits[place] - largest, _LEAST_EXPONENT))
    return total


@compiled()
def _insert(values: np.ndarray, places: np.ndarray, value: np.float32, place: int) -> None:
    """The best first; of equals the one that came first."""
    at = len(values) - 1
    while at > 0 and values[at - 1] < value:
        values[at], places[at] = values[at - 1], places[at - 1]
        at -= 1
    values[at], places[at] = value, place


@compiled()
def _find_best(logits: np.ndarray, values: np.ndarray, places: np.ndarray) -> None:
    num = len(values)
    for place in range(num):
        _insert(values[: place + 1], places[: place + 1], logits[place], place)
    for first in range(num, len(logits), PART):
        end = min(first + PART, len(logits))
        if not has_larger(logits[first:end], values[num - 1]):
            continue
        for place in range(first, end):
            if logits[place] > values[num - 1]:
                _insert(values, places, logits[place], place)


@callback("void(voidptr)")
def find_best_tokens(pointer: int) -> None:
    given = carray(pointer, (NUM_GIVEN,), np.int64)
    width, num, ids = given[1], given[2], int64_at(given[5])
    places = np.empty(num, np.int64)
    for row in range(thread_index(), given[0], num_threads()):
        logits = carray(pointer_to(given[4] + 4 * row * given[3]), (width,), np.float32)
        values = float32_at(given[6])[row * num : (row + 1) * num]
        _find_best(logits, values, places)
        largest = values[0]
        total = np.log(_sum_of_exponentials(logits, largest))
        for each in range(num):
            values[each] -= largest + total
            int64_at(given[7])[row * num + each] = ids[places[each]]
