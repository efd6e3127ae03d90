"""How busy the device is: the share of wall time in which it ran a step or sent its output."""

from outrider.runtime.lane import Mark


class Occupancy:
    """Sums over the steps whose ends have been seen, in order."""

    def __init__(self) -> None:
        self._ends: list[Mark] = []  # of the last step alone; none before the first
        self.busy_s = 0.0
        self.span_s = 0.0  # from the first step's start to the last one's end
        self.waited_s = 0.0  # by the host, for outcomes to come home

    @property
    def share(self) -> float:
        """1.0 means that the device never waited for the host."""
        return self.busy_s / self.span_s if self.span_s else 0.0

    def restart(self) -> None:
        """Forget all steps so far; the next one is the first."""
        self._ends, self.busy_s, self.span_s, self.waited_s = [], 0.0, 0.0, 0.0

    def note(self, start: Mark, end: Mark, *, waited_s: float) -> float:
        """Count a step that is complete; returns its seconds."""
        self.waited_s += waited_s
        busy = start.seconds_until(end)
        gap = sum(last.seconds_until(start) for last in self._ends)
        self.busy_s += busy
        self.span_s += busy + gap
        self._ends = [end]
        return busy
