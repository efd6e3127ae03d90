"""Decides from a worker's counters whether it hangs. Knows no process and no file."""

from dataclasses import dataclass

from outrider.server.worker_board import Pulse

LOOK_S = 0.5  # between two looks at the counters
# A server that was stopped itself sees old counters. It must not blame the worker for that time.
_LONGEST_LOOK_S = 2 * LOOK_S


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatLimits:
    """Seconds that a worker may stand still."""

    step_s: float = 300.0  # one step, with the kernels it compiles and the graphs it captures
    # Without a beat the process is stopped, or one call holds the interpreter. Calls in steps take
    # seconds. While a model is loaded a call can read a large file from a slow disk: `step_s`.
    silence_s: float = 30.0
    # After these times `/health` answers 503, though the worker may recover.
    unhealthy_silence_s: float = 3.0
    unhealthy_step_s: float = 60.0


class Heartbeat:
    """Owns for how long the counters of one worker have stood still."""

    def __init__(self, limits: HeartbeatLimits, *, is_loading: bool) -> None:
        self._limits = limits
        self._is_loading = is_loading  # then there is no step loop yet
        self._last = Pulse(beats=-1, loops=-1)
        self._silent_s = 0.0
        self._step_s = 0.0

    def look(self, pulse: Pulse, *, after_s: float) -> None:
        """Take in the counters, `after_s` seconds after the last look."""
        after_s = min(after_s, _LONGEST_LOOK_S)
        self._silent_s = 0.0 if pulse.beats != self._last.beats else self._silent_s + after_s
        self._step_s = 0.0 if pulse.loops != self._last.loops else self._step_s + after_s
        self._last = pulse

    @property
    def trouble(self) -> str:
        """Why the worker cannot answer now; empty if it can."""
        limits = self._limits
        if self._silent_s >= min(limits.unhealthy_silence_s, self._most_silent_s):
            return f"the engine's worker has not answered for {self._silent_s:.0f} s"
        if not self._is_loading and self._step_s >= min(limits.unhealthy_step_s, limits.step_s):
            return f"the engine's worker has been in one step for {self._step_s:.0f} s"
        return ""

    @property
    def is_hung(self) -> bool:
        """Whether the worker must be replaced."""
        is_stuck = not self._is_loading and self._step_s >= self._limits.step_s
        return is_stuck or self._silent_s >= self._most_silent_s

    @property
    def _most_silent_s(self) -> float:
        limits = self._limits
        return limits.step_s if self._is_loading else min(limits.silence_s, limits.step_s)
