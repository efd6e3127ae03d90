"""How many threads compute: fewer while other processes use the cores of some of them.

A team waits at every barrier for its last thread. Where another process has the core of one thread,
that thread loses whole time slices, and two threads are slower than one. The bits of results do not
depend on the number of threads, so it may change between any two calls.

Times are ticks of a core's time stamp counter, which has 2 to 4 in a nanosecond.
"""

import logging
import math

_log = logging.getLogger(__name__)

_MS = 2_500_000
_LEAST_LAG = 10 * _MS  # that takes a thread away: a few time slices
_WINDOW = 20 * _MS  # of work, after which its lag is forgotten
_FIRST_WAIT, _LONGEST_WAIT = 250 * _MS, 4_000 * _MS  # until a thread is tried again
_USUAL_SHARE = 0.3  # of the time, more than teams lag that have their cores for themselves


class TeamSize:
    """Takes a thread away where the others would be faster without it, and tries it again later.

    A team's lag is the time from its first to its last thread at barriers where that is long.
    """

    def __init__(self) -> None:
        self._limit: float = math.inf  # of the threads of every caller
        self._most, self._size = 1, 1  # threads of the last caller, and of its team
        self._wait = _FIRST_WAIT
        self._next_trial, self._limited_at = 0, 0
        self._is_trial = False
        self._work, self._lag = 0, 0

    def choose(self, most: int, *, now: int) -> int:
        """The number of threads for the next call, of at most that many."""
        if most > self._limit and now >= self._next_trial:
            self._limit, self._is_trial = self._limit + 1, True
            self._next_trial = now + self._wait
            self._work, self._lag = 0, 0
        self._most, self._size = most, int(min(most, self._limit))
        return self._size

    def note(self, ticks: int, *, lag: int, now: int) -> None:
        """Take note of the time and the lag of a call by the chosen team."""
        if self._most < self._limit < math.inf:
            return  # a small team says nothing about larger ones
        self._work += ticks
        self._lag += lag
        if self._lag >= _LEAST_LAG and self._lag > self._work * max(1 / self._size, _USUAL_SHARE):
            self._take_away(now)
        elif self._work >= _WINDOW:
            self._end_window(now)

    def _end_window(self, now: int) -> None:
        """No thread was late."""
        self._work, self._lag = 0, 0
        if self._is_trial:
            self._is_trial, self._wait = False, max(_FIRST_WAIT, self._wait // 2)
            if self._size == self._most:
                self._limit = math.inf
            _log.info("computing with %d threads again", self._size)
        elif self._limit == math.inf and now - self._limited_at > _LONGEST_WAIT:
            self._wait = _FIRST_WAIT  # what was learned is old

    def _take_away(self, now: int) -> None:
        self._limit = self._size - 1
        if not self._is_trial:
            _log.info("other processes use cores: computing with %d threads", self._limit)
        self._is_trial, self._limited_at = False, now
        self._next_trial = now + self._wait
        self._wait = min(_LONGEST_WAIT, 2 * self._wait)
        self._work, self._lag = 0, 0
