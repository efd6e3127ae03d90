"""For how long the engine has had requests, and the device has run their steps."""

import time

from outrider.wire.engine_stats import DeviceWork, StepCounts


class ActiveClock:
    """Sums the wall time in which there is work. The engine says when that begins and ends."""

    def __init__(self) -> None:
        self.busy_s = 0.0  # of the device
        self._total_s = 0.0
        self._since_s: float | None = None  # while there is work

    def note(self, *, has_work: bool) -> None:
        """There is work from now on, or none."""
        now_s = time.perf_counter()
        if self._since_s is not None:
            self._total_s += now_s - self._since_s
        self._since_s = now_s if has_work else None

    def read(self, counts: StepCounts, *, has_work: bool) -> DeviceWork:
        """All work so far."""
        self.note(has_work=has_work)
        return DeviceWork(busy_s=self.busy_s, active_s=self._total_s, counts=counts)
