"""How busy the device is: the share of wall time in which it ran a step or sent its output."""

from outrider.step.device_stream import DeviceEvent


class Occupancy:
    """Sums over the steps whose ends have been seen, in order."""

    def __init__(self) -> None:
        self._span: tuple[DeviceEvent, ...] = ()  # the first step's start and the last one's end
        self.busy_s = 0.0
        self.waited_s = 0.0  # by the host, for outcomes to come home

    @property
    def span_s(self) -> float:
        """From the first step's start to the last one's end."""
        return self._span[0].seconds_until(self._span[1]) if self._span else 0.0

    @property
    def share(self) -> float:
        """1.0 means that the device never waited for the host."""
        span_s = self.span_s
        return min(1.0, self.busy_s / span_s) if span_s else 0.0

    def restart(self) -> None:
        """Forget all steps so far; the next one is the first."""
        self._span, self.busy_s, self.waited_s = (), 0.0, 0.0

    def note(self, start: DeviceEvent, end: DeviceEvent, *, waited_s: float) -> float:
        """Count a step that is complete; returns its seconds."""
        busy_s = start.seconds_until(end)
        self.busy_s += busy_s
        self.waited_s += waited_s
        self._span = (self._span[0] if self._span else start, end)
        return busy_s
