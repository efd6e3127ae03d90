"""What the computing half tells the deciding half about itself, once, before the first step."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from outrider.config.settings import HostSettings
from outrider.wire.draft_budget import Budget
from outrider.wire.engine_stats import StepCounts
from outrider.wire.scheduled_batch import ScheduledBatch
from outrider.wire.step_result import StepResult

OnProgress = Callable[[int, int], None]  # called with shapes captured so far, and of how many


def ignore_progress(done: int, total: int) -> None:
    """An `OnProgress` that shows nothing."""
    del done, total


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftFacts:
    """What the drafter's nature means for the host."""

    budget: Budget  # the most a row may use; its nodes are the most it can emit in a step
    lead: int  # positions the draft model runs ahead of the target
    lookahead: int  # tokens past a position that its draft KV depends on
    needs_text: bool  # a new row's whole text must travel, the part that is not run included
    is_paced: bool  # draft lengths follow each request's success, within the budget
    is_adaptive: bool  # and what the batch's steps cost


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerFacts:
    """Sizes that bound every decision of the scheduler."""

    num_pages: int  # usable KV pages; page 0 not counted
    vocab_size: int
    draft: DraftFacts
    max_chunks: int  # prompts that may share one step
    host: HostSettings
    depth: int  # steps in flight while the next is planned

    @property
    def reach(self) -> int:
        """Positions past the cached ones that a decoding row may write in a step."""
        return self.draft.budget.reach(self.draft.lead)


class PendingResult(Protocol):
    """A step in flight."""

    def wait(self) -> StepResult: ...


class StepRunner(Protocol):
    """Runs steps in the order they are submitted."""

    @property
    def counts(self) -> StepCounts: ...

    def submit(self, batch: ScheduledBatch) -> PendingResult: ...

    def restart(self) -> None:
        """Forget every row and step after a failure; raises when the device itself is lost."""
        ...
