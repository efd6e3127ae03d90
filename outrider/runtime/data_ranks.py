"""Ranks with requests of their own, whose steps run together.

The driver, which is rank 0, knows the batches of all ranks, so it takes the largest of their sizes
before any of them is padded. Every rank fits, binds and runs the same shape, with or without rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from outrider.distributed.rank_group import ProcessRanks
from outrider.errors import CapacityError
from outrider.runtime.rank_messages import RunStep
from outrider.runtime.rank_processes import RankProcesses
from outrider.runtime.row_samplings import RowSamplings
from outrider.runtime.runner import AgreedStep, Runner
from outrider.sampling.sampling_flags import joined_flags
from outrider.step.step_sizes import joined_sizes, sizes_of
from outrider.wire.adapter import AdapterChecks
from outrider.wire.embedded_span import EmbeddedSpan
from outrider.wire.engine_stats import StepCounts
from outrider.wire.runner_facts import PendingResult
from outrider.wire.scheduled_batch import EMPTY_BATCH, ScheduledBatch
from outrider.wire.step_result import StepResult


class StepAgreement:
    """Finds what all ranks run a step with. It follows the rows of every rank."""

    def __init__(self, size: int) -> None:
        self._samplings = [RowSamplings() for _ in range(size)]

    def agree(self, batches: Sequence[ScheduledBatch]) -> AgreedStep:
        for samplings, batch in zip(self._samplings, batches, strict=True):
            samplings.admit(batch.admissions)
        flags = [
            samplings.flags_of(batch)
            for samplings, batch in zip(self._samplings, batches, strict=True)
        ]
        sizes = joined_sizes([sizes_of(batch) for batch in batches])
        return AgreedStep(sizes, joined_flags(flags))


class DataRanksRunner:
    """Owns the runner of rank 0 and the processes of the others."""

    def __init__(self, first: Runner, ranks: ProcessRanks, others: RankProcesses) -> None:
        self._first = first
        self._ranks = ranks
        self._others = others
        self._agreement = StepAgreement(others.size + 1)

    @property
    def size(self) -> int:
        return self._others.size + 1

    @property
    def loss(self) -> str:
        return self._others.loss

    @property
    def adapters(self) -> AdapterChecks:
        return self._first.adapters

    @property
    def counts(self) -> StepCounts:
        return self._first.counts

    def submit(self, batches: Sequence[ScheduledBatch]) -> Sequence[PendingResult]:
        agreed = self._agreement.agree(batches)
        for rank, batch in enumerate(batches[1:], start=1):
            self._others.send_to(rank, RunStep(batch, agreed))
        pending = [RemoteStep(self._others, rank) for rank in range(1, len(batches))]
        try:
            own = self._first.submit(batches[0], agreed)
            self._ranks.end_step()
        except RuntimeError as error:  # gloo's, if another rank has ended or is late
            raise CapacityError(self._others.explain(error)) from error
        return [own, *pending]

    def find_tokens(self, span: EmbeddedSpan) -> tuple[int, ...]:
        return self._first.find_tokens(span)

    def close(self) -> None:
        self._others.close()


@dataclass(frozen=True, slots=True)
class RemoteStep:
    """A step in flight on another rank. Results come in the order of submission."""

    ranks: RankProcesses
    rank: int

    def wait(self) -> StepResult:
        return self.ranks.next_result(self.rank)


class RankRunner:
    """One rank of a group as a runner: the other ranks have no rows in its steps."""

    def __init__(self, group: DataRanksRunner, rank: int) -> None:
        self._group = group
        self._rank = rank

    @property
    def counts(self) -> StepCounts:
        return self._group.counts

    def submit(self, batch: ScheduledBatch) -> PendingResult:
        batches = [EMPTY_BATCH] * self._group.size
        batches[self._rank] = batch
        return self._group.submit(batches)[self._rank]

    def find_tokens(self, span: EmbeddedSpan) -> tuple[int, ...]:
        return self._group.find_tokens(span)

    def restart(self) -> None:
        """Never succeeds: how far the other ranks came in a failed step is unknown."""
        self._group.close()
        raise CapacityError("a step failed on a group of ranks")
