"""Earlier occurrences of the last tokens of texts, as a compiled loop of one thread.

The array of integers that it gets has sizes, then addresses:

    0 rows, 1 width, 2 fewest and 3 most tokens that match, 4 occurrences, 5 stride of texts
    6 texts int32, 7 positions of the last tokens int64
    8 ends and 9 matched tokens int64 [rows, occurrences]: written
"""

import numpy as np
from numba import carray

from outrider.ops.compiled.address import int32_at, int64_at
from outrider.ops.compiled.kernel_cache import callback, compiled


@compiled()
def _num_equal(text: np.ndarray, first: int, last: int, end: int, most: int) -> int:
    """How many tokens up to `end` are those up to `last`."""
    num = 0
    while num < most and num <= end and text[first + end - num] == text[first + last - num]:
        num += 1
    return num


@compiled()
def insert_match(ends: np.ndarray, matched: np.ndarray, end: int, num: int) -> None:
    """Longest matches first. Ends come from the last to the first, so equals keep their order."""
    place = len(ends) - 1
    if matched[place] >= num:
        return
    while place > 0 and matched[place - 1] < num:
        ends[place], matched[place] = ends[place - 1], matched[place - 1]
        place -= 1
    ends[place], matched[place] = end, num


@compiled()
def find_row_matches(
    text: np.ndarray,
    first: int,  # where the text of the row begins
    last: int,  # position of its last token
    least: int,
    most: int,
    ends: np.ndarray,  # written
    matched: np.ndarray,  # written
) -> None:
    """The earlier occurrences of the last tokens of one row."""
    ends[:], matched[:] = 0, 0
    for back in range(1, last + 1):
        equal = _num_equal(text, first, last, last - back, most)
        if equal >= least:
            insert_match(ends, matched, last - back, equal)


@callback("void(voidptr)")
def find_text_matches(pointer: int) -> None:
    given = carray(pointer, (10,), np.int64)
    rows, num, text = given[0], given[4], int32_at(given[6])
    for row in range(rows):
        ends = int64_at(given[8])[row * num : (row + 1) * num]
        matched = int64_at(given[9])[row * num : (row + 1) * num]
        last = min(int64_at(given[7])[row], given[1] - 1)
        find_row_matches(text, row * given[5], last, given[2], given[3], ends, matched)
