"""Times a drafter by a wrapper around it.

The host's clock is right only where operations finish before they return: eager, on a CPU.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from outrider.models.draft_model import AuxLayers
from outrider.models.model_config import AnyAttention
from outrider.ops.tree.draft_tree import DraftTree, StepOutcome
from outrider.ops.tree.plan_rows import ChunkRows, DecodeRows
from outrider.runtime.draft_kinds import DraftKind, DraftRoom
from outrider.spec.drafter import Drafter
from outrider.step.plan import DraftPlan, StepPlan
from outrider.step.row_table import RowTable
from outrider.step.shape import StepShape
from outrider.wire.runner_facts import DraftFacts
from outrider.wire.scheduled_batch import RowAdmission


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


class TimedDrafter:
    """A drafter that times `propose` and `observe` of another and passes on everything else."""

    def __init__(self, drafter: Drafter, clock: DraftClock) -> None:
        self._drafter = drafter
        self._clock = clock

    @property
    def facts(self) -> DraftFacts:
        return self._drafter.facts

    @property
    def aux_layers(self) -> AuxLayers:
        return self._drafter.aux_layers

    def bind(self, shape: StepShape, decode: DecodeRows, chunk: ChunkRows) -> DraftPlan:
        return self._drafter.bind(shape, decode, chunk)

    def admit(self, admissions: Sequence[RowAdmission]) -> None:
        self._drafter.admit(admissions)

    def forget(self) -> None:
        self._drafter.forget()

    def propose(self, plan: StepPlan, table: RowTable) -> DraftTree:
        with self._clock.drafting():
            return self._drafter.propose(plan, table)

    def observe(self, plan: StepPlan, outcome: StepOutcome, table: RowTable) -> None:
        with self._clock.catching_up():
            self._drafter.observe(plan, outcome, table)
