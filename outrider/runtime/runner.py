"""Runs scheduled batches: update the tables, plan, execute, and hand back a pending result."""

from dataclasses import replace

import torch

from outrider.runtime.occupancy import Occupancy
from outrider.runtime.pending_result import Flight, Pending
from outrider.runtime.program import StepProgram
from outrider.runtime.row_details import Asked, asks_for_more
from outrider.runtime.row_samplings import LawBook
from outrider.runtime.watchdog import Watchdog
from outrider.step.device_stream import Lane
from outrider.step.executor import Executor
from outrider.step.plan import StepPlan
from outrider.step.planner import Planner
from outrider.step.shape import StepShape
from outrider.step.step_output import send
from outrider.structured.grammar_cache import Grammars
from outrider.wire.engine_stats import StepCounts
from outrider.wire.scheduled_batch import RowAdmission, ScheduledBatch


class Runner:
    """Runs batches on the device state in the order they are submitted."""

    def __init__(
        self,
        *,
        program: StepProgram,
        planner: Planner,
        executor: Executor,
        lane: Lane,
    ) -> None:
        self._program = program
        self._planner = planner
        self._executor = executor
        self._lane = lane
        self._laws = LawBook()
        self._num_steps = 0
        self.occupancy = Occupancy()
        self.watchdog = Watchdog()

    @property
    def grammars(self) -> Grammars:
        """Which grammars it can obey."""
        return self._program.state.grammars.grammars

    @property
    def counts(self) -> StepCounts:
        """Steps for nobody, which record shapes, count as steps, too."""
        executor = self._executor
        return StepCounts(
            steps=self._num_steps, eager=executor.num_eager, unrecordable=executor.num_refused
        )

    @torch.inference_mode()
    def submit(self, batch: ScheduledBatch) -> Pending:
        """Start a step; the result can be waited for while the next step is planned."""
        with self._lane.active():
            self._admit(batch.admissions)
            grammars, warps = self._program.state.grammars, self._laws.warps_of(batch)
            if grammars.begin(batch):
                warps = replace(warps, grammar=True)
            plan = self._planner.plan(batch, warps=warps)
            laws = self._laws.of(batch) if asks_for_more(plan.shape) else ()
            # A grammar waits for the device inside the step, and so does a launch when many wait.
            self.watchdog.begin(batch.step, plan.shape)
            try:
                flight = self._fly(plan)
            finally:
                self.watchdog.end()
            errors = grammars.end(plan.shape, flight.landed, flight.output)
        asked = Asked(batch=batch, laws=laws, errors=errors)
        return Pending(plan.shape, asked, flight, self.occupancy, self.watchdog)

    @torch.inference_mode()
    def practise(self, shape: StepShape) -> None:
        """Run a step of this shape for nobody; an executor that records has recorded it then."""
        with self._lane.active():
            self._fly(self._planner.null(shape)).landed.wait()

    @torch.inference_mode()
    def restart(self) -> None:
        """Forget all rows after a failed step; raises if the device does not answer any more.

        Recordings stay, and nothing is practised again.
        """
        self._lane.mark().wait()  # an error of CUDA stays for good, and would be raised here
        rows, pages = self._program.state.rows, self._program.state.pages
        with self._lane.active():
            # Half-computed values may be no numbers, and whoever gets the page masks by a zero.
            pages.clean(torch.unique(rows.pages))
            for table in (rows.pages, rows.lengths, rows.last_tokens):
                table.zero_()
            self._program.drafter.forget()
            self._lane.mark().wait()
        self._planner.forget()
        self._laws.forget()
        self._program.state.grammars.forget()

    def scribble(self) -> None:
        """Fill all pages with noise: for measuring reads of what nobody wrote."""
        with self._lane.active():
            self._program.state.pages.scribble()

    def run_by(self, executor: Executor) -> None:
        """Let another executor run steps from now on: for measuring what is left without one."""
        self._executor = executor

    def _fly(self, plan: StepPlan) -> Flight:
        self._num_steps += 1
        start = self._lane.mark()
        output = send(self._executor.run(self._program, plan))
        return Flight(
            start=start,
            landed=self._lane.mark(),
            output=output,
            has_drafter_failed=self._program.drafter.is_broken,
        )

    def _admit(self, admissions: tuple[RowAdmission, ...]) -> None:
        if not admissions:
            return
        self._program.state.rows.admit(admissions)
        self._program.state.sampling.admit(admissions)
        self._program.state.grammars.admit(admissions)
        self._program.drafter.admit(admissions)
        self._laws.admit(admissions)
