"""New keys of some places, merged into the order of all places: a compiled loop of one thread.

The array of integers that it gets has sizes, then addresses, all of int64:

    0 contexts, 1 places, 2 begin and 3 stop of the range with new keys
    4 keys by place, [contexts, places]
    5 ordered keys and 6 their places, [contexts, places]: changed in place
"""

import numpy as np
from numba import carray

from outrider.ops.compiled.address import int64_at
from outrider.ops.compiled.kernel_cache import callback, compiled


@compiled()
def _merge(
    new: np.ndarray,  # [range] keys
    begin: int,  # the first place of the range
    keys: np.ndarray,  # [places] changed
    places: np.ndarray,  # [places] changed
) -> None:
    """One pass. Of equal keys the later place comes later, as after a stable sort."""
    order = np.argsort(new, kind="mergesort")
    old_keys, old_places, taken, at = keys.copy(), places.copy(), 0, 0
    for old in range(len(keys)):
        key, place = old_keys[old], old_places[old]
        if begin <= place < begin + len(new):
            continue
        while taken < len(new) and (
            new[order[taken]] < key or (new[order[taken]] == key and begin < place)
        ):
            keys[at], places[at] = new[order[taken]], begin + order[taken]
            taken, at = taken + 1, at + 1
        keys[at], places[at] = key, place
        at += 1
    while taken < len(new):
        keys[at], places[at] = new[order[taken]], begin + order[taken]
        taken, at = taken + 1, at + 1


@callback("void(voidptr)")
def merge_context_keys(pointer: int) -> None:
    given = carray(pointer, (7,), np.int64)
    size, begin, stop = given[1], given[2], given[3]
    for context in range(given[0]):
        first = context * size
        new = int64_at(given[4])[first + begin : first + stop]
        keys = int64_at(given[5])[first : first + size]
        _merge(new, begin, keys, int64_at(given[6])[first : first + size])
