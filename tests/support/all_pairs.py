"""Which cases of a parametrised test contain every pair of values of two parameters."""

import random
from collections.abc import Mapping, Sequence
from itertools import combinations

Case = Mapping[str, object]  # the values of its parameters, by name
Pair = tuple[tuple[str, str], ...]  # names and values of two parameters, or of the only one


def pairs_of(case: Case) -> set[Pair]:
    values = [(name, repr(value)) for name, value in sorted(case.items())]
    return set(combinations(values, min(len(values), 2)))


def cover_pairs(chosen: Sequence[Case], others: Sequence[Case], *, seed: str) -> list[int]:
    """Indices of `others` with which `chosen` contains every pair that any case contains."""
    pairs = [pairs_of(case) for case in others]
    missing = set[Pair]().union(*pairs).difference(*map(pairs_of, chosen))
    order = random.Random(seed).sample(range(len(others)), len(others))
    added = []
    while missing:
        best = max(order, key=lambda index: len(pairs[index] & missing))
        missing -= pairs[best]
        added.append(best)
    return added
