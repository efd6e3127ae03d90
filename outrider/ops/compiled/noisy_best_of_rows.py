"""The best score of every row, filter and noise included: a team's compiled function.

Noise is drawn for tokens that the filter left. NaN counts as the largest, and of equal scores the
first is the best. The array of integers that it gets:

    0 rows, 1 scores of a row, 2 numbers from row to row, 3 token of the first column
    4 scores float32, 5 floors float32 [rows] or 0
    6 rows of the tables and 7 positions int64 [rows]
    8 seeds int64, 9 temperatures float32, 10 and 11 numbers from row to row of both
    12 the best of each part float32, 13 its place int64, [rows, parts] both, parts of `PART_SCORES`
    14 places int64 and 15 scores float32 [rows]: written
    16 tokens int32 and 17 scores float32 [threads, PART_SCORES] both: scratch
"""

from typing import NamedTuple

import numpy as np
from numba import carray

from outrider.ops.compiled.address import float32_at, int64_at, pointer_to
from outrider.ops.compiled.best_of_rows import PART_SCORES, find_best
from outrider.ops.compiled.gumbel_rows import draw_at, key_of
from outrider.ops.compiled.kernel_cache import callback, compiled
from outrider.ops.compiled.openmp import num_threads, thread_index
from outrider.ops.compiled.team_barrier import wait_for_team
from outrider.ops.compiled.token_masses import PART, has_from

NUM_GIVEN = 18
_LEAST, _NO_FLOOR, _ZERO = np.float32(-np.inf), np.float32(np.nan), np.float32(0.0)


class _Scratch(NamedTuple):
    """Room for what a filter left of a part."""

    tokens: np.ndarray  # [PART_SCORES] int32
    noisy: np.ndarray  # [PART_SCORES] float32


@compiled()
def _keep_all(num: int, token: int, tokens: np.ndarray) -> np.int64:
    for place in range(num):
        tokens[place] = token + place
    return np.int64(num)


@compiled()
def _keep_left(scores: np.ndarray, floor: np.float32, token: int, tokens: np.ndarray) -> np.int64:
    """The tokens whose scores are not below the floor; returns how many."""
    num = np.uint64(0)
    for first in range(0, len(scores), PART):
        part = scores[first : first + PART]
        if not has_from(part, floor):
            continue
        for place in range(len(part)):
            tokens[num] = token + first + place
            num = np.uint64(num + np.uint64(not part[place] < floor))
    return np.int64(num)


@compiled()
def _find_noisy(
    scores: np.ndarray,
    floor: np.float32,
    temperature: np.float32,
    key: np.uint64,
    token: int,  # of the first score
    scratch: _Scratch,
) -> tuple[np.float32, int]:
    """The best of a part. A product and a sum are rounded each, as in torch."""
    if temperature == _ZERO:
        best, found = find_best(scores)
        return (_LEAST, 0) if best < floor else (best, found)
    if floor == floor:
        num = _keep_left(scores, floor, token, scratch.tokens)
    else:
        num = _keep_all(len(scores), token, scratch.tokens)
    if not num:
        return _LEAST, 0
    tokens, noisy = scratch.tokens[:num], scratch.noisy[:num]
    draw_at(tokens, key, noisy)
    for place in range(num):
        noisy[place] = scores[tokens[place] - token] + noisy[place] * temperature
    best, found = find_best(noisy)
    return best, tokens[found] - token


@compiled()
def _find_part(
    given: np.ndarray, item: int, start: int, scratch: _Scratch
) -> tuple[np.float32, int]:
    """The best of the scores of a row from a place on."""
    row = int64_at(given[6])[item]
    temperature = float32_at(given[9])[row * given[11]]
    key = key_of(int64_at(given[8])[row * given[10]], int64_at(given[7])[item])
    floor = float32_at(given[5])[item] if given[5] else _NO_FLOOR
    at, size = given[4] + 4 * (item * given[2] + start), min(PART_SCORES, given[1] - start)
    scores = carray(pointer_to(at), (size,), np.float32)
    return _find_noisy(scores, floor, temperature, key, given[3] + start, scratch)


@callback("void(voidptr)")
def find_noisy_best(pointer: int) -> None:
    given = carray(pointer, (NUM_GIVEN,), np.int64)
    rows, parts = given[0], (given[1] + PART_SCORES - 1) // PART_SCORES
    values = carray(pointer_to(given[12]), (rows * parts,), np.float32)
    places = carray(pointer_to(given[13]), (rows * parts,), np.int64)
    own = 4 * thread_index() * PART_SCORES  # bytes of both
    scratch = _Scratch(
        carray(pointer_to(given[16] + own), (PART_SCORES,), np.int32),
        carray(pointer_to(given[17] + own), (PART_SCORES,), np.float32),
    )
    for item in range(thread_index(), rows * parts, num_threads()):
        start = item % parts * PART_SCORES
        values[item], place = _find_part(given, item // parts, start, scratch)
        places[item] = start + place
    wait_for_team()
    for row in range(thread_index(), rows, num_threads()):
        best, found = find_best(values[row * parts : (row + 1) * parts])
        int64_at(given[14])[row], float32_at(given[15])[row] = places[row * parts + found], best
