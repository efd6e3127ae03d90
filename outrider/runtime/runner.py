"""Runs scheduled batches: update the tables, plan, execute, and hand back a pending result."""

import torch

from outrider.runtime.pending import Pending
from outrider.runtime.program import DeviceState, StepProgram
from outrider.sampling.need import warps_of
from outrider.spec.guard import GuardedDrafter
from outrider.step.executor import Executor
from outrider.step.planner import Planner
from outrider.wire.batch import RowAdmission, ScheduledBatch
from outrider.wire.sampling import RowSampling


class Runner:
    """Owns the device state. Batches run in the order they are submitted."""

    def __init__(
        self,
        *,
        program: StepProgram,
        drafter: GuardedDrafter,
        planner: Planner,
        executor: Executor,
        state: DeviceState,
    ) -> None:
        self._program = program
        self._drafter = drafter
        self._planner = planner
        self._executor = executor
        self._state = state
        self._samplings: dict[int, RowSampling] = {}  # the law of each row's present owner

    @torch.inference_mode()
    def submit(self, batch: ScheduledBatch) -> Pending:
        """Start a step; the result can be waited for while the next step is planned."""
        self._update_tables(batch)
        laws = [self._samplings[row] for row in batch.rows]
        plan = self._planner.plan(batch, warps=warps_of(laws))
        output = self._executor.run(self._program, plan)
        return Pending(
            batch,
            plan.shape,
            [law.logprobs for law in laws],
            output,
            has_drafter_failed=self._drafter.is_broken,
        )

    def _update_tables(self, batch: ScheduledBatch) -> None:
        self._admit(batch.admissions)
        self._state.rows.grant(batch.grants)

    def _admit(self, admissions: tuple[RowAdmission, ...]) -> None:
        if not admissions:
            return
        self._state.rows.admit(admissions)
        self._state.sampling.admit(admissions)
        self._drafter.admit(admissions)
        self._samplings.update((entry.row, entry.sampling) for entry in admissions)
