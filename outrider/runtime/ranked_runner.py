"""A runner of several ranks: rank 0 is in this process, the others run what it runs."""

from outrider.distributed.rank_group import ProcessRanks
from outrider.errors import CapacityError
from outrider.runtime.rank_messages import RunStep
from outrider.runtime.rank_processes import RankProcesses
from outrider.runtime.runner import InFlightStep, Runner
from outrider.structured.grammar_cache import Grammars
from outrider.wire.adapter import AdapterChecks
from outrider.wire.embedded_span import EmbeddedSpan
from outrider.wire.engine_stats import StepCounts
from outrider.wire.scheduled_batch import ScheduledBatch


class RankedRunner:
    """Owns the runner of rank 0 and the other ranks. Only the output of rank 0 is read."""

    def __init__(self, first: Runner, ranks: ProcessRanks, others: RankProcesses) -> None:
        self._first = first
        self._ranks = ranks
        self._others = others

    @property
    def grammars(self) -> Grammars:
        return self._first.grammars

    @property
    def adapters(self) -> AdapterChecks:
        return self._first.adapters

    @property
    def counts(self) -> StepCounts:
        return self._first.counts

    def submit(self, batch: ScheduledBatch) -> InFlightStep:
        self._others.send(RunStep(batch))
        try:
            step = self._first.submit(batch)
            self._ranks.end_step()
        except RuntimeError as error:  # gloo's, if another rank has ended or is late
            raise CapacityError(self._others.explain(error)) from error
        return step

    def close(self) -> None:
        """End the other ranks."""
        self._others.close()

    def find_tokens(self, span: EmbeddedSpan) -> tuple[int, ...]:
        return self._first.find_tokens(span)

    def restart(self) -> None:
        """Never succeeds: how far the other ranks came in a failed step is unknown."""
        self._others.close()
        raise CapacityError(self._others.loss or "a step failed on a group of ranks")
