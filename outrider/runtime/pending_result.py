"""A step in flight. Its outcome travels to the host by itself, and is read when asked for."""

import time
from dataclasses import dataclass

from outrider.runtime.occupancy import Occupancy
from outrider.runtime.row_details import StepRequests, read_details
from outrider.runtime.watchdog import Watchdog
from outrider.step.device_stream import DeviceEvent
from outrider.step.shape import StepShape
from outrider.step.step_output import PackedOutput, unpack_tokens
from outrider.wire.step_result import StepResult


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlightStep:
    """Where a step began on the device, its output, and where that is home."""

    start: DeviceEvent
    output_ready: DeviceEvent
    output: PackedOutput
    has_drafter_failed: bool


class Pending:
    """Owns the host copy of one step's output."""

    def __init__(
        self,
        shape: StepShape,
        requests: StepRequests,
        in_flight: InFlightStep,
        occupancy: Occupancy,
        watchdog: Watchdog,
    ) -> None:
        self._shape = shape
        self._requests = requests
        self._in_flight = in_flight
        self._occupancy = occupancy
        self._watchdog = watchdog

    def wait(self) -> StepResult:
        """The tokens of every row, in the order of the batch."""
        waited_s = self._wait_for_output()
        batch, output, shape = self._requests.batch, self._in_flight.output, self._shape
        in_flight = self._in_flight
        busy_s = self._occupancy.note(in_flight.start, in_flight.output_ready, waited_s=waited_s)
        read = unpack_tokens(output, shape)
        num_decodes = len(batch.decodes)  # after them comes padding
        decoded = zip(read.emitted[:num_decodes], read.num_accepted, strict=False)
        tokens = [tuple(emitted[: num_accepted + 1]) for emitted, num_accepted in decoded]
        for chunk, choice in zip(batch.chunks, read.chunk_choice, strict=False):
            tokens.append((choice,) if chunk.is_last else ())
        return StepResult(
            step=batch.step,
            tokens=tokens,
            drafted=read.drafted[:num_decodes] + [0] * len(batch.chunks),
            details=read_details(output, shape, self._requests, tokens),
            busy_s=busy_s,
            has_drafter_failed=self._in_flight.has_drafter_failed,
        )

    def _wait_for_output(self) -> float:
        """Wait for the output; returns for how many seconds."""
        began_s = time.perf_counter()
        self._watchdog.begin(self._requests.batch.step, self._shape)
        try:
            self._in_flight.output_ready.wait()
        finally:
            self._watchdog.end()
        return time.perf_counter() - began_s
