"""Paths of texts grafted onto the candidates of a draft model, as a compiled loop of one thread.

The array of integers that it gets has sizes, then addresses; floats are float32, the rest is int64:

    0 rows, 1 candidates of the model, 2 paths, 3 steps of a path
    strides of 4 scores, 5 tokens, 6 parents, 7 paths, 8 weights
    9 doubt of the first token of a path, 10 of later ones, 11 chance of sampled rows, as float32
    12 scores, 13 tokens, 14 parents of the model
    15 paths, 16 weights, 17 longest matches, 18 steps that rows may draft, 19 which rows sample
    20 scores, 21 tokens, 22 parents, 23 sources of all candidates: written
"""

import numpy as np
from numba import carray

from outrider.ops.compiled.address import float32_at, int64_at
from outrider.ops.compiled.exponential import float_of
from outrider.ops.compiled.kernel_cache import callback, compiled

NUM_GIVEN = 24
_MODEL, _TEXT, _BOTH = np.int64(0), np.int64(1), np.int64(2)  # as in `graft_paths`
_NEVER, _LEAST = np.float32(-np.inf), np.float32(1e-9)


@compiled()
def _log(chance: np.float32) -> np.float32:
    logarithm: np.float32 = np.float32(np.log(max(chance, _LEAST)))
    return logarithm


@compiled()
def _trust(matched: np.float32, doubt: int) -> np.float32:
    """The logarithm of the chance of a token after so many that match."""
    return _log(matched / (matched + float_of(np.int32(doubt))))


@compiled()
def _copy_model(given: np.ndarray, row: int) -> None:
    """The candidates of the model come first; room for the nodes of paths follows."""
    width, whole = given[1], given[1] + given[2] * given[3]
    for place in range(whole):
        at, is_model = row * whole + place, place < width
        float32_at(given[20])[at] = (
            float32_at(given[12])[row * given[4] + place] if is_model else _NEVER
        )
        int64_at(given[21])[at] = int64_at(given[13])[row * given[5] + place] if is_model else 0
        int64_at(given[22])[at] = int64_at(given[14])[row * given[6] + place] if is_model else -1
        int64_at(given[23])[at] = _MODEL if is_model else _TEXT


@compiled()
def _hit(given: np.ndarray, row: int, parent: int, token: int) -> int:
    """The candidate of the model that is this node, or -1."""
    width = given[1]
    first = row * (width + given[2] * given[3])
    for place in range(parent + 1, width):  # a parent comes before its children
        at = first + place
        is_same = int64_at(given[21])[at] == token and int64_at(given[22])[at] == parent
        if is_same and float32_at(given[20])[at] > _NEVER:
            return place
    return -1


@compiled()
def _graft_path(given: np.ndarray, row: int, path: int, total: np.float32) -> None:
    """Follow the model's nodes as long as they have the tokens of the path, then add its own."""
    width, num, steps = given[1], given[2], given[3]
    whole = row * (width + num * steps)
    paths, weights = int64_at(given[15]), float32_at(given[16])
    first_path, first_weight = row * given[7], row * given[8]
    is_same = np.empty(num, np.bool_)  # paths with the same tokens so far
    for other in range(num):
        is_same[other] = weights[first_weight + other] > np.float32(0.0)
    parent, score, before = -1, np.float32(0.0), _log(total)
    matched = np.float32(int64_at(given[17])[row])
    own = float_of(np.int32(given[11])) * np.float32(int64_at(given[19])[row])
    for depth in range(steps):
        token = paths[first_path + path * steps + depth]
        if token < 0:
            return
        first, weight = num, np.float32(0.0)
        for other in range(num):
            is_same[other] &= paths[first_path + other * steps + depth] == token
            if is_same[other]:
                first, weight = min(first, other), weight + weights[first_weight + other]
        trust = _trust(matched + np.float32(depth), given[10] if depth else given[9])
        score += _log(weight) - before + trust
        before = _log(weight)
        number = _hit(given, row, parent, token) if parent < width else -1
        if number >= 0:
            score, int64_at(given[23])[whole + number] = (
                float32_at(given[20])[whole + number],
                _BOTH,
            )
        else:
            number = width + num * depth + first
            score += own
            if first == path and depth < int64_at(given[18])[row]:
                float32_at(given[20])[whole + number] = score
                int64_at(given[21])[whole + number] = token
                int64_at(given[22])[whole + number] = parent
        parent = number


@callback("void(voidptr)")
def graft_text_paths(pointer: int) -> None:
    given = carray(pointer, (NUM_GIVEN,), np.int64)
    for row in range(given[0]):
        _copy_model(given, row)
        total = np.float32(0.0)
        for path in range(given[2]):
            total += float32_at(given[16])[row * given[8] + path]
        for path in range(given[2]):
            if float32_at(given[16])[row * given[8] + path] > np.float32(0.0):
                _graft_path(given, row, path, total)
