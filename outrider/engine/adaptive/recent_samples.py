"""Means and usual values of the last samples."""

import math
from collections import deque

_WINDOW = 8  # samples that are remembered
_MEMORY = 0.1  # least weight of a sample of many rows; one of few rows has less
_MANY = 8  # rows
_FADED = 4  # samples that an old mean counts for


class MovingMean:
    """The mean of the first samples, then a moving mean."""

    def __init__(self) -> None:
        self.value = 0.0
        self.num = 0  # of samples

    def note(self, sample: float, num: int = 1) -> None:
        """`sample` is the mean of so many."""
        self.num += num
        least = _MEMORY * min(1.0, num / _MANY)
        self.value += max(least, num / self.num) * (sample - self.value)

    def fade(self) -> None:
        """Let the next samples count more than the old ones."""
        self.num = min(self.num, _FADED)


class UsualSeconds:
    """The usual seconds of the last steps: the lower quartile, which slow steps do not move.

    Captures, page faults and other processes make steps slower, and nothing makes a step faster.
    """

    def __init__(self) -> None:
        self._last: deque[float] = deque(maxlen=_WINDOW)
        self.usual = math.inf  # until there is a sample

    def note(self, seconds: float) -> None:
        self._last.append(seconds)
        self.usual = sorted(self._last)[(len(self._last) - 1) // 4]

    def forget(self) -> None:
        self._last.clear()
        self.usual = math.inf

    @property
    def num(self) -> int:
        """Steps that are remembered."""
        return len(self._last)

    @property
    def is_known(self) -> bool:
        return bool(self._last)
