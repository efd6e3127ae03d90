"""Times a drafter by a wrapper around it.

The host's clock is right only where operations finish before they return: eager, on a CPU.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from outrider.models.model_config import AnyAttention
from outrider.ops.tree.draft_tree import DraftTree, StepOutcome
from outrider.runtime.draft_kinds import DraftKind, DraftRoom
from outrider.spec.drafter import Drafter, WrappedDrafter
from outrider.step.plan import StepPlan
from outrider.step.row_table import RowTable
from outrider.wire.runner_facts import DraftFacts


class DraftClock:
    """Owns the seconds spent since the last reset."""

    def __init__(self) -> None:
        self.draft_s = 0.0
        self.catch_up_s = 0.0

    def reset(self) -> None:
        self.draft_s = self.catch_up_s = 0.0

    @contextmanager
    def drafting(self) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.draft_s += time.perf_counter() - start

    @contextmanager
    def catching_up(self) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.catch_up_s += time.perf_counter() - start


@dataclass(frozen=True, slots=True)
class TimedDraft:
    """A draft kind whose drafter is timed."""

    kind: DraftKind
    clock: DraftClock

    @property
    def facts(self) -> DraftFacts:
        return self.kind.facts

    @property
    def attention(self) -> Sequence[AnyAttention]:
        return self.kind.attention

    def build(self, room: DraftRoom) -> Drafter:
        return TimedDrafter(self.kind.build(room), self.clock)


class TimedDrafter(WrappedDrafter):
    """A drafter that times `propose` and `observe` of another and passes on everything else."""

    def __init__(self, drafter: Drafter, clock: DraftClock) -> None:
        super().__init__(drafter)
        self._clock = clock

    def propose(self, plan: StepPlan, table: RowTable) -> DraftTree:
        with self._clock.drafting():
            return super().propose(plan, table)

    def observe(self, plan: StepPlan, outcome: StepOutcome, table: RowTable) -> None:
        with self._clock.catching_up():
            super().observe(plan, outcome, table)
