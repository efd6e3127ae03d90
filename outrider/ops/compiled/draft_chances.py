"""Measured chances of draft candidates, as compiled loops of one thread.

Arrays of integers have sizes, then addresses; floats are float32, the rest is int64.
`calibrate_candidates`:

    0 rows, 1 candidates, strides of 2 scores, 3 parents, 4 kinds
    5 scores: written, 6 parents, 7 kinds, 8 tried, 9 accepted
    10 entries: written

`count_accepted_drafts`:

    0 rows, 1 candidates, 2 nodes, 3 nodes of a path
    4 entries, 5 candidates of nodes, 6 parents of nodes, 7 path, 8 stride of parents
    9 tried and 10 accepted: written

`limit_children`:

    0 rows, 1 candidates, strides of 2 scores, 3 parents
    4 scores: written, 5 parents, 6 children that nodes of a row may have
"""

import numpy as np
from numba import carray

from outrider.ops.compiled.address import float32_at, int64_at
from outrider.ops.compiled.kernel_cache import callback, compiled

# These constants stand in `acceptance_table`, too; a test compares the results.
_KINDS, _DEPTHS, _BINS = 6, 8, 8
_NUM_ENTRIES = _KINDS * _DEPTHS * _BINS
_PRIOR, _DECAY, _SLOPE = np.float32(8.0), np.float32(0.995), np.float32(0.01)
_BEST, _LEAST = np.float32(-1e-3), np.float32(-30.0)
_NEVER, _HALF, _ONE = np.float32(-np.inf), np.float32(0.5), np.float32(1.0)


@compiled()
def _of_all_depths(entry: int) -> int:
    kind = entry // (_DEPTHS * _BINS)
    return (kind * _DEPTHS + _DEPTHS - 1) * _BINS + entry % _BINS


@compiled()
def _own_value(score: np.float32, above: np.float32) -> np.float32:
    """What the drafter thinks of a candidate after its parent."""
    value = np.float32(score - above)
    if np.isnan(value) or value < _LEAST:
        return _LEAST
    return min(value, np.float32(0.0))


@compiled()
def _thought(number: int) -> np.float32:
    """The probability in the middle of a bin."""
    middle: np.float32 = (np.float32(number) + _HALF) / np.float32(_BINS)
    return middle


@compiled()
def _scale(given: np.ndarray, first: int) -> np.float32:
    """How often drafts of a kind are accepted, over how often their drafter thinks so."""
    tried, accepted = float32_at(given[8]), float32_at(given[9])
    num_thought = num_accepted = _PRIOR
    for number in range(_BINS):
        entry = _of_all_depths(first + number)
        num_thought += tried[entry] * _thought(number)
        num_accepted += accepted[entry]
    scale: np.float32 = num_accepted / num_thought
    return scale


@compiled()
def _rate(given: np.ndarray, first: int, number: int) -> np.float32:
    """The share of drafts that were accepted, of a bin and all below it the largest."""
    tried, accepted, most = float32_at(given[8]), float32_at(given[9]), np.float32(0.0)
    scale = _scale(given, first)
    for each in range(number + 1):
        rate = min(_thought(each) * scale, _ONE)
        for part in (_of_all_depths(first + each), first + each):
            rate = (accepted[part] + _PRIOR * rate) / (tried[part] + _PRIOR)
        most = max(most, rate)
    return most


@compiled()
def _measured(given: np.ndarray, first: int, thought: np.float32) -> np.float32:
    """The logarithm of the chance, as `_chances` of `acceptance_table` interpolates it."""
    place = thought * np.float32(_BINS) - _HALF
    below = min(max(int(np.floor(place)), 0), _BINS - 2)
    low, high = _rate(given, first, below), _rate(given, first, below + 1)
    share = min(max(place - np.float32(below), np.float32(0.0)), _ONE)
    between = low + (high - low) * share
    chance = between * min(place + place + _ONE, _ONE) + _SLOPE * thought
    own: np.float32 = min(max(np.float32(np.log(chance)), _LEAST), _BEST)
    return own


@callback("void(voidptr)")
def calibrate_candidates(pointer: int) -> None:
    """Parents come before their children, so one pass reaches all depths."""
    given = carray(pointer, (11,), np.int64)
    width = given[1]
    depths, before = np.empty(width, np.int64), np.empty(width, np.float32)
    for row in range(given[0]):
        scores = float32_at(given[5])[row * given[2] :]
        for place in range(width):
            parent = int64_at(given[6])[row * given[3] + place]
            before[place] = scores[place]
            depths[place] = depths[parent] + 1 if parent >= 0 else 0
            value = _own_value(before[place], before[parent] if parent >= 0 else np.float32(0.0))
            thought = np.float32(np.exp(value))
            kind = int64_at(given[7])[row * given[4] + place]
            first = (kind * _DEPTHS + min(depths[place], _DEPTHS - 2)) * _BINS
            code = min(int(thought * np.float32(_BINS)), _BINS - 1)
            int64_at(given[10])[row * width + place] = first + code
            if before[place] > _NEVER:
                above = scores[parent] if parent >= 0 else np.float32(0.0)
                scores[place] = _measured(given, first, thought) + above


@callback("void(voidptr)")
def count_accepted_drafts(pointer: int) -> None:
    given = carray(pointer, (11,), np.int64)
    tried, accepted, nodes = float32_at(given[9]), float32_at(given[10]), given[2]
    for entry in range(_NUM_ENTRIES):
        tried[entry] *= _DECAY
        accepted[entry] *= _DECAY
    for row in range(given[0]):
        on_path = np.int64(0)
        for place in range(given[3]):
            on_path |= np.int64(1) << int64_at(given[7])[row * given[3] + place]
        for node in range(1, nodes):
            number = int64_at(given[5])[row * nodes + node]
            parent = int64_at(given[6])[row * given[8] + node]
            if number >= 0 and (on_path >> max(parent, 0)) & 1:
                entry = int64_at(given[4])[row * given[1] + number]
                for part in (entry, _of_all_depths(entry)):
                    tried[part] += _ONE
                    accepted[part] += np.float32((on_path >> node) & 1)


@callback("void(voidptr)")
def limit_children(pointer: int) -> None:
    given = carray(pointer, (7,), np.int64)
    width = given[1]
    is_allowed = np.empty(width, np.bool_)
    for row in range(given[0]):
        scores = float32_at(given[4])[row * given[2] :]
        parents = int64_at(given[5])[row * given[3] :]
        for place in range(width):
            num_better, score = 0, scores[place]
            for other in range(width):
                if parents[other] == parents[place]:
                    is_earlier = scores[other] == score and other < place
                    num_better += scores[other] > score or is_earlier
            is_allowed[place] = num_better < int64_at(given[6])[row]
        for place in range(width):
            if parents[place] >= 0:
                is_allowed[place] &= is_allowed[parents[place]]
            if not is_allowed[place]:
                scores[place] = _NEVER
