"""How busy the device was lately: the share of the time with requests in which it ran steps."""

from collections import deque

_WINDOW_S = 10.0  # of time with requests
_BETWEEN_S = 0.1  # between marks


class OccupancyWindow:
    """Keeps marks of the worker's sums over the last seconds with requests."""

    def __init__(self) -> None:
        self._marks = deque([(0.0, 0.0)])  # (active_s, busy_s), the oldest first

    def note(self, *, active_s: float, busy_s: float) -> float:
        """Add the sums of now; returns the share since the oldest mark, 0 before any work."""
        if active_s < self._marks[-1][0]:  # another worker counts from 0
            self._marks = deque([(0.0, 0.0)])
        while len(self._marks) > 1 and active_s - self._marks[1][0] >= _WINDOW_S:
            self._marks.popleft()
        first_active_s, first_busy_s = self._marks[0]
        if active_s - self._marks[-1][0] >= _BETWEEN_S:
            self._marks.append((active_s, busy_s))
        span_s = active_s - first_active_s
        return min(1.0, (busy_s - first_busy_s) / span_s) if span_s > 0 else 0.0
