"""How busy the device is: the share of wall time in which it ran a step or copied its output."""

from outrider.step.device_stream import DeviceEvent


class Occupancy:
    """Sums over the steps whose ends have been seen, in order."""

    def __init__(self) -> None:
        self._first: DeviceEvent | None = None  # start of the first step
        self._last: DeviceEvent | None = None  # end of the last one
        self.busy_s = 0.0
        self.waited_s = 0.0  # host time spent waiting for outputs

    @property
    def span_s(self) -> float:
        """From the first step's start to the last one's end."""
        if self._first is None or self._last is None:
            return 0.0
        return self._first.seconds_until(self._last)

    @property
    def share(self) -> float:
        """1.0 means that the device never waited for the host."""
        span_s = self.span_s
        return min(1.0, self.busy_s / span_s) if span_s else 0.0

    def restart(self) -> None:
        """Forget all steps so far; the next one is the first."""
        self._first, self._last, self.busy_s, self.waited_s = None, None, 0.0, 0.0

    def note(self, start: DeviceEvent, end: DeviceEvent, *, waited_s: float) -> float:
        """Count a step that is complete; returns its seconds."""
        busy_s = start.seconds_until(end)
        self.busy_s += busy_s
        self.waited_s += waited_s
        self._first, self._last = self._first or start, end
        return busy_s
