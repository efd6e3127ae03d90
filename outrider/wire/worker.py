"""What the computing half tells the deciding half about itself, once, before the first step."""

from dataclasses import dataclass
from typing import Protocol

from outrider.config.settings import HostSettings
from outrider.wire.batch import ScheduledBatch
from outrider.wire.result import StepResult


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerFacts:
    """Sizes that bound every decision of the scheduler."""

    num_pages: int  # usable KV pages; page 0 not counted
    vocab_size: int
    nodes: int  # query tokens of a decoding row, and so the most it can emit in a step
    max_chunks: int  # prompts that may share one step
    host: HostSettings
    depth: int  # steps in flight while the next is planned


class PendingResult(Protocol):
    """A step in flight."""

    def wait(self) -> StepResult: ...


class StepRunner(Protocol):
    """Runs steps in the order they are submitted."""

    def submit(self, batch: ScheduledBatch) -> PendingResult: ...
