"""Looks for larger values among many, a whole vector of them at a time."""

import numpy as np

from outrider.ops.compiled.kernel_cache import compiled

PART = 128  # values that are compared before they are looked at one by one


@compiled()
def has_larger(values: np.ndarray, than: np.float32) -> bool:
    """Whether a value is larger than this one, or NaN.

    Counted in 32 bits from index 0 on: a compiler makes no vectors of a search that ends early, of
    a maximum, or of indices that may be negative.
    """
    num = np.int32(0)
    for place in range(len(values)):
        num = np.int32(num + np.int32(not values[place] <= than))
    return bool(num)
