"""Runs scheduled batches: updates row tables, plans, executes, returns a pending result."""

import time
from dataclasses import dataclass, replace

import torch

from outrider.kv.kv_pool import PageFamily
from outrider.runtime.occupancy import Occupancy
from outrider.runtime.program import StepProgram
from outrider.runtime.row_details import StepRequests, read_details, wants_details
from outrider.runtime.row_errors import row_errors
from outrider.runtime.row_images import RowImages
from outrider.runtime.row_samplings import RowSamplings
from outrider.runtime.row_snapshots import RowSnapshots
from outrider.runtime.step_output import StepOutput, copy_to_host
from outrider.runtime.watchdog import Watchdog
from outrider.step.device_stream import DeviceStream
from outrider.step.executor import Executor
from outrider.step.plan import StepPlan
from outrider.step.planner import Planner
from outrider.step.shape import SamplingFlags, StepShape
from outrider.step.step_sizes import StepSizes, sizes_of
from outrider.structured.grammar_cache import Grammars
from outrider.wire.adapter import AdapterChecks
from outrider.wire.embedded_span import EmbeddedSpan
from outrider.wire.engine_stats import StepCounts
from outrider.wire.scheduled_batch import RowAdmission, ScheduledBatch
from outrider.wire.step_result import StepResult


@dataclass(frozen=True, slots=True)
class AgreedStep:
    """What `fit` reads of a step: raw sizes, and the parts of sampling that it has."""

    sizes: StepSizes
    sampling_flags: SamplingFlags


class Runner:
    """Runs batches in the order in which they are submitted."""

    def __init__(
        self,
        *,
        program: StepProgram,
        planner: Planner,
        executor: Executor,
        stream: DeviceStream,
        num_snapshots: int = 0,
    ) -> None:
        self._program = program
        self._planner = planner
        self._executor = executor
        self.stream = stream
        self._samplings = RowSamplings()
        pools, drafter = program.state.pages, program.drafter
        self.row_images = RowImages((*pools.row_tensors, *drafter.row_tensors), stream)
        self._snapshots = RowSnapshots(pools.row_tensors, num_snapshots)
        self._embedding_index = program.make_embedding_index()
        self._num_steps = 0
        self.occupancy = Occupancy()
        self.watchdog = Watchdog()

    @property
    def grammars(self) -> Grammars:
        """The compiled grammars that its rows can follow."""
        return self._program.state.grammars.grammars

    @property
    def adapters(self) -> AdapterChecks:
        """The adapters that its rows can run through."""
        return self._program.adapters

    @property
    def pages(self) -> PageFamily:
        """The pools of the target and the drafter."""
        return self._program.state.pages

    @property
    def has_drafter_failed(self) -> bool:
        """Whether the drafter was given up; nothing is drafted any more."""
        return self._program.drafter.is_broken

    @property
    def counts(self) -> StepCounts:
        """How steps were run so far; dummy runs count as steps, too."""
        executor = self._executor
        return StepCounts(
            steps=self._num_steps, eager=executor.num_eager, unrecordable=executor.num_uncapturable
        )

    @torch.inference_mode()
    def find_tokens(self, span: EmbeddedSpan) -> tuple[int, ...]:
        """The token that each embedding is of; -1 for one that no token has."""
        with self.stream.active():
            return self._embedding_index.find(span)

    @torch.inference_mode()
    def submit(self, batch: ScheduledBatch, agreed: AgreedStep | None = None) -> "InFlightStep":
        """Start a step; the result can be waited for while the next step is planned.

        Ranks that exchange tokens inside a step run it in the shape that they agreed on, even if
        their own batch is empty.
        """
        with self.stream.active():
            for load in batch.adapter_loads:
                self._program.adapters.place(load)
            if batch.finished:
                self._program.drafter.remember(batch.finished)
            self._admit(batch.admissions)
            grammars, sampling_flags = self._program.state.grammars, self._samplings.flags_of(batch)
            if grammars.begin(batch):
                sampling_flags = replace(sampling_flags, grammar=True)
            own = AgreedStep(sizes_of(batch), sampling_flags)
            plan = self._plan(batch, agreed or own)
            samplings = self._samplings.of(batch) if wants_details(plan.shape) else ()
            # A launch can block: a grammar waits for the device, and the launch queue can be full.
            self.watchdog.begin(batch.step, plan.shape)
            try:
                output = self._launch(plan)
            finally:
                self.watchdog.end()
            self._snapshots.save(batch.snapshots)
            failures = grammars.end(output)
        requests = StepRequests(batch=batch, samplings=samplings, failures=failures)
        return InFlightStep(self, requests, output)

    @torch.inference_mode()
    def dummy_run(self, shape: StepShape) -> None:
        """Run a step of this shape without requests; an executor with graphs captures it."""
        with self.stream.active():
            self._launch(self._planner.null(shape)).wait()

    @torch.inference_mode()
    def prepare(self, shape: StepShape) -> None:
        """Capture a step of this shape, if the executor captures; a step of its kind has run."""
        with self.stream.active():
            self._executor.prepare(self._program, self._planner.null(shape))

    @torch.inference_mode()
    def restart(self) -> None:
        """Forget all rows after a failed step; raises if the device does not answer any more.

        Captured graphs stay valid, and no dummy run is repeated.
        """
        self.stream.record_event().wait()  # raises if a CUDA error is still pending
        rows, pages = self._program.state.rows, self._program.state.pages
        with self.stream.active():
            # A step that broke off can leave values that are not finite, which pools never hold.
            pages.clean(torch.unique(rows.pages), torch.unique(rows.window_pages))
            rows.forget()
            self._program.drafter.forget()
            self.stream.record_event().wait()
        self._planner.forget()
        self._samplings.forget()
        self.row_images.forget_all()  # no request that waits for a row keeps its image
        self._program.state.grammars.forget()

    def _plan(self, batch: ScheduledBatch, step: AgreedStep) -> StepPlan:
        return self._planner.plan(
            batch,
            sampling_flags=step.sampling_flags,
            sizes=step.sizes,
            cover=self._executor.cover,
        )

    def _launch(self, plan: StepPlan) -> StepOutput:
        self._num_steps += 1
        started = self.stream.record_event()
        packed = copy_to_host(self._executor.run(self._program, plan))
        ready = self.stream.record_event()
        return StepOutput(shape=plan.shape, started=started, ready=ready, packed=packed)

    def _admit(self, admissions: tuple[RowAdmission, ...]) -> None:
        if not admissions:
            return
        self._program.state.rows.admit(admissions)
        self._program.state.sampling.admit(admissions)
        self._program.state.grammars.admit(admissions)
        self._program.drafter.admit(admissions)
        self._samplings.admit(admissions)
        for each in admissions:
            if each.arrived:
                self.row_images.place(each.row, each.arrived)
            if each.snapshot:
                self._snapshots.restore(each.row, each.snapshot)


class InFlightStep:
    """A step in flight, and the details that its rows want."""

    def __init__(self, runner: Runner, requests: StepRequests, output: StepOutput) -> None:
        self._requests = requests
        self._output = output
        self._occupancy = runner.occupancy
        self._watchdog = runner.watchdog
        self._has_drafter_failed = runner.has_drafter_failed

    def wait(self) -> StepResult:
        """The tokens of every row, in the order of the batch."""
        waited_s = self._wait_for_output()
        batch, output = self._requests.batch, self._output
        busy_s = self._occupancy.note(output.started, output.ready, waited_s=waited_s)
        read = output.tokens()
        num_decodes = len(batch.decodes)  # the rows after them are padding
        decoded = zip(read.emitted[:num_decodes], read.num_accepted, strict=False)
        tokens = [tuple(emitted[: num_accepted + 1]) for emitted, num_accepted in decoded]
        for chunk, choice in zip(batch.chunks, read.chunk_choice, strict=False):
            tokens.append((choice,) if chunk.is_last else ())
        errors = row_errors(read, self._requests)
        for place, error in errors.items():
            tokens[place] = tokens[place][: error.num_good]
        return StepResult(
            step=batch.step,
            tokens=tokens,
            drafted=read.drafted[:num_decodes] + [0] * len(batch.chunks),
            details=read_details(
                output,
                self._requests,
                tokens,
                errors,
            ),
            busy_s=busy_s,
            has_drafter_failed=self._has_drafter_failed,
        )

    def _wait_for_output(self) -> float:
        """Wait for the output; returns for how many seconds."""
        began_s = time.perf_counter()
        self._watchdog.begin(self._requests.batch.step, self._output.shape)
        try:
            self._output.wait()
        finally:
            self._watchdog.end()
        return time.perf_counter() - began_s
