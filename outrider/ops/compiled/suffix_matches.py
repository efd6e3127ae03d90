"""Suffix drafting as a compiled loop of one thread: matches in own and in finished texts.

The array of integers that it gets has sizes, then addresses:

    0 rows, 1 width, 2 fewest and 3 most tokens of an own match, 4 own places, 5 stride of texts
    6 steps, 7 places in finished texts, 8 length of finished texts, 9 most tokens compared there
    10 places of a context that are compared, 11 contexts, 12 owner of no text,
    13 SHORT and 14 WEIGHT_STEP of the weights
    15 texts int32, 16 positions of the last tokens, 17 readers, 18 tokens, 19 owners,
    20 keys and 21 places of finished texts, 22 lengths of contexts, 23 factors of keys: int64
    24 paths int64 [rows, places, steps], 25 matched int64 and 26 weights float32 [rows, places]:
        written
"""

import numpy as np
from numba import carray

from outrider.ops.compiled.address import float32_at, int32_at, int64_at
from outrider.ops.compiled.kernel_cache import callback, compiled
from outrider.ops.compiled.text_matches import find_row_matches, insert_match

NUM_GIVEN = 27
_END = -1


@compiled()
def _last_of(given: np.ndarray, row: int) -> int:
    """The position of a row's last token; inside of the row, whatever a plan says."""
    return int(min(int64_at(given[16])[row], given[1] - 1))


@compiled()
def _own_matches(given: np.ndarray, row: int, ends: np.ndarray, matched: np.ndarray) -> None:
    """The places of the row's own text, and how many tokens match there, more than were asked."""
    text, first = int32_at(given[15]), row * given[5]
    last = _last_of(given, row)
    find_row_matches(text, first, last, given[2], given[3], ends, matched)
    for place in range(len(ends)):
        if matched[place]:
            end, num = ends[place], 0
            while num < given[9] and num <= end:
                token = text[first + end - num]
                if token != text[first + last - num] or token == _END:
                    break
                num += 1
            matched[place] = num


@compiled()
def _follow_own(given: np.ndarray, row: int, end: int, path: np.ndarray) -> None:
    """The tokens after a place; after the last one they repeat."""
    text, first, last = int32_at(given[15]), row * given[5], _last_of(given, row)
    period = max(last - end, 1)
    for step in range(len(path)):
        path[step] = text[first + end + 1 + step % period]


@compiled()
def _after(keys: np.ndarray, key: int) -> int:
    """The place after the last key that is not larger."""
    low, high = 0, len(keys)
    while low < high:
        middle = (low + high) // 2
        if keys[middle] <= key:
            low = middle + 1
        else:
            high = middle
    return low


@compiled()
def _num_shared(given: np.ndarray, row: int, place: int) -> int:
    """How many tokens up to a place of finished texts are the last of the row."""
    text, first = int32_at(given[15]), row * given[5]
    tokens, last, num = int64_at(given[18]), _last_of(given, row), 0
    while num < given[9] and num <= last and num <= place:
        token = tokens[place - num]
        if token != text[first + last - num] or token == _END:
            return num
        num += 1
    return num


@compiled()
def _shared_matches(given: np.ndarray, row: int, ends: np.ndarray, matched: np.ndarray) -> None:
    """The last places of every context in texts that the row may read."""
    text, first, last = int32_at(given[15]), row * given[5], _last_of(given, row)
    reader, size, contexts = int64_at(given[17])[row], given[8], int64_at(given[22])
    if reader == given[12]:
        return
    factors, owners, key, read = int64_at(given[23]), int64_at(given[19]), reader, 0
    for level in range(given[11]):
        while read < contexts[level]:
            if read > last or text[first + last - read] == _END:
                return  # this context reaches over the begin, and so do longer ones
            key += (np.int64(text[first + last - read]) + 1) * factors[read]
            read += 1
        keys = int64_at(given[20])[level * size : (level + 1) * size]
        places, at = int64_at(given[21])[level * size : (level + 1) * size], _after(keys, key)
        for index in range(at - 1, max(at - 1 - given[10], -1), -1):
            if keys[index] != key:
                break
            place = places[index]
            num = _num_shared(given, row, place) if owners[place] == reader else 0
            is_repeated = level + 1 < given[11] and num >= contexts[level + 1]
            if num and not is_repeated:
                insert_match(ends, matched, place, num)


@compiled()
def _follow_shared(given: np.ndarray, place: int, path: np.ndarray) -> None:
    tokens, is_text = int64_at(given[18]), True
    for step in range(len(path)):
        token = tokens[place + 1 + step]
        is_text = is_text and token != _END
        path[step] = token if is_text else _END


@compiled()
def _level(given: np.ndarray, matched: int) -> float:
    short = given[13]
    return short + np.log2(matched / short) if matched > short else float(matched)


@compiled()
def _weigh(given: np.ndarray, matched: np.ndarray, weights: np.ndarray) -> None:
    """The share of each match among all of its row."""
    longest, total = 0, 0.0
    for place in range(len(matched)):
        longest = max(longest, matched[place])
    for place in range(len(matched)):
        weight = 0.0
        if matched[place]:
            weight = given[14] ** (_level(given, matched[place]) - _level(given, longest))
        weights[place] = weight
        total += weight
    for place in range(len(matched)):
        weights[place] /= max(total, 1e-9)


@callback("void(voidptr)")
def find_suffix_matches(pointer: int) -> None:
    given = carray(pointer, (NUM_GIVEN,), np.int64)
    own, steps, num = given[4], given[6], given[4] + given[7]
    ends = np.zeros(num, np.int64)
    for row in range(given[0]):
        matched = int64_at(given[25])[row * num : (row + 1) * num]
        ends[own:], matched[own:] = 0, 0
        _own_matches(given, row, ends[:own], matched[:own])
        _shared_matches(given, row, ends[own:], matched[own:])
        for place in range(num):
            begin = (row * num + place) * steps
            path = int64_at(given[24])[begin : begin + steps]
            if not matched[place]:
                path[:] = _END
            elif place < own:
                _follow_own(given, row, ends[place], path)
            else:
                _follow_shared(given, ends[place], path)
        _weigh(given, matched, float32_at(given[26])[row * num : (row + 1) * num])
