"""For how long the engine has had requests: the time in which a device could have run steps."""

import time


class ActiveClock:
    """Sums the wall time in which there is work. The engine says when that begins and ends."""

    def __init__(self) -> None:
        self._total_s = 0.0
        self._since_s: float | None = None  # while there is work

    def note(self, *, has_work: bool) -> None:
        """There is work from now on, or none."""
        now_s = time.perf_counter()
        if self._since_s is not None:
            self._total_s += now_s - self._since_s
        self._since_s = now_s if has_work else None

    def total_s(self, *, has_work: bool) -> float:
        """Seconds with work so far."""
        self.note(has_work=has_work)
        return self._total_s
