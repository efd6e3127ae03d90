"""How many threads compute: fewer while other processes use the cores of some of them.

A team waits at every barrier for its last thread. Where another process has the core of one thread,
that thread loses whole time slices, and two threads are slower than one. The bits of results do not
depend on the number of threads, so it may change between any two calls.

Times are ticks of a core's time stamp counter, which has 2 to 4 in a nanosecond.
"""

import logging

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
        self._size = 1
        self._is_limited = False
        self._wait = _FIRST_WAIT
        self._next_trial = 0
        self._is_trial = False
        self._work, self._lag = 0, 0

    def choose(self, most: int, *, now: int) -> int:
        """The number of threads for the next call, of at most that many."""
        if not self._is_limited or self._size >= most:
            self._size, self._is_limited = most, False
        elif now >= self._next_trial:
            self._size, self._is_trial = self._size + 1, True
            self._next_trial = now + self._wait
            self._work, self._lag = 0, 0
        return self._size

    def note(self, ticks: int, *, lag: int, now: int) -> None:
        """Take note of the time and the lag of a call by the chosen team."""
        self._work += ticks
        self._lag += lag
        if self._lag >= _LEAST_LAG and self._lag > self._work * max(1 / self._size, _USUAL_SHARE):
            self._take_away(now)
        elif self._work >= _WINDOW:
            if self._is_trial:
                self._wait, self._is_trial = max(_FIRST_WAIT, self._wait // 2), False
            self._work, self._lag = 0, 0

    def _take_away(self, now: int) -> None:
        self._size -= 1
        _log.info("other processes use the cores of some threads: computing with %d", self._size)
        self._is_limited, self._is_trial = True, False
        self._next_trial = now + self._wait
        self._wait = min(_LONGEST_WAIT, 2 * self._wait)
        self._work, self._lag = 0, 0
