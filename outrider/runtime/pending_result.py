"""A step in flight. Its outcome travels to the host by itself, and is read when asked for."""

import time
from dataclasses import dataclass

from outrider.runtime.occupancy import Occupancy
from outrider.runtime.row_details import Asked, read_details
from outrider.runtime.watchdog import Watchdog
from outrider.step.device_stream import Mark
from outrider.step.shape import StepShape
from outrider.step.step_output import Packed, unpack_tokens
from outrider.wire.step_result import StepResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Flight:
    """Where a step began on the device, its output, and where that is home."""

    start: Mark
    landed: Mark
    output: Packed
    has_drafter_failed: bool


class Pending:
    """Owns the host copy of one step's output."""

    def __init__(
        self,
        shape: StepShape,
        asked: Asked,
        flight: Flight,
        occupancy: Occupancy,
        watchdog: Watchdog,
    ) -> None:
        self._shape = shape
        self._asked = asked
        self._flight = flight
        self._occupancy = occupancy
        self._watchdog = watchdog

    def wait(self) -> StepResult:
        """The tokens of every row, in the order of the batch."""
        waited_s = self._land()
        batch, output, shape = self._asked.batch, self._flight.output, self._shape
        flight = self._flight
        busy_s = self._occupancy.note(flight.start, flight.landed, waited_s=waited_s)
        read = unpack_tokens(output, shape)
        num_decodes = len(batch.decodes)  # after them comes padding
        decoded = zip(read.emitted[:num_decodes], read.kept, strict=False)
        tokens = [tuple(emitted[: kept + 1]) for emitted, kept in decoded]
        for chunk, choice in zip(batch.chunks, read.chunk_choice, strict=False):
            tokens.append((choice,) if chunk.is_last else ())
        return StepResult(
            step=batch.step,
            tokens=tokens,
            drafted=read.drafted[:num_decodes] + [0] * len(batch.chunks),
            details=read_details(output, shape, self._asked, tokens),
            busy_s=busy_s,
            has_drafter_failed=self._flight.has_drafter_failed,
        )

    def _land(self) -> float:
        """Wait for the output; returns for how many seconds."""
        began_s = time.perf_counter()
        self._watchdog.begin(self._asked.batch.step, self._shape)
        try:
            self._flight.landed.wait()
        finally:
            self._watchdog.end()
        return time.perf_counter() - began_s
