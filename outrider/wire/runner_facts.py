"""What the runtime tells the engine about itself, once, before the first step."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from outrider.config.settings import HostSettings
from outrider.wire.draft_budget import Budget
from outrider.wire.embedded_span import EmbeddedSpan
from outrider.wire.engine_stats import StepCounts
from outrider.wire.scheduled_batch import ScheduledBatch
from outrider.wire.step_result import StepResult
from outrider.wire.window_facts import NO_WINDOWS, WindowFacts, most_window_pages

OnProgress = Callable[[int, int], None]  # called with shapes captured so far, and of how many


def ignore_progress(done: int, total: int) -> None:
    """An `OnProgress` that shows nothing."""
    del done, total


@dataclass(frozen=True, slots=True, kw_only=True)
class RungCost:
    """What a decode step took in a dummy run before the first request."""

    rows: int
    drafts: int  # of a row on average; 0: plain decoding
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftFacts:
    """Facts about the drafter that the scheduler needs."""

    budget: Budget  # the most a row may use; its nodes are the most it can emit in a step
    lead: int  # positions the draft model runs ahead of the target
    lookahead: int  # tokens past a position that its draft KV depends on
    needs_text: bool  # a new row is sent with its whole text, cached part included
    is_paced: bool  # draft lengths follow the acceptance of each request, within the budget
    is_adaptive: bool  # draft lengths follow the measured cost of steps, too
    is_ranked: bool  # drafts of all rows have scores, so a step can verify the best of them
    needs_finished: bool = False  # it drafts from the answers of requests that ended
    block: int = 0  # slots that a round runs at once after the cached tokens; 0: level by level
    costs: tuple[RungCost, ...] = ()  # of steps by rows and drafts, as far as they were measured

    def reach(self, tree: Budget) -> int:
        """Positions past the cached ones that a round with such a tree may write."""
        return tree.reach(self.lead, self.block)


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotFacts:
    """Copies of row state by which the prefix cache can resume a request at a page border."""

    num: int  # slots for copies
    row_bytes: int  # of one copy; 0 for a model without row state, which needs no copies
    every: int  # tokens of a text from one copy to the next, at least


NO_SNAPSHOTS = SnapshotFacts(num=0, row_bytes=0, every=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFacts:
    """One process that computes the model, and what it holds of it."""

    rank: int
    pid: int
    host: str  # the name of its machine
    device: str
    weight_bytes: int
    kv_bytes: int  # of all pages


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightStorage:
    """Weights of the target that are stored alike on the device."""

    modules: str  # last parts of their names: one weight, or several that are one projection
    storage: str  # such as Q4_K, int4 or bfloat16
    num: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFacts:
    """The memory that a runner holds for weights, and the memory that it can use for KV."""

    weight_bytes: int  # of the target and the draft model, as measured around loading
    page_bytes: int  # of one KV page, in the caches of both
    num_pages: int  # usable KV pages; page 0 not counted
    tp_size: int  # ranks that share every layer
    ranks: tuple[RankFacts, ...]  # the processes that compute the model; the rest is of rank 0
    kv_dtype: str = "float32"  # in which keys and values are stored
    windows: WindowFacts = NO_WINDOWS
    weights: tuple[WeightStorage, ...] = ()  # of the target, on rank 0

    @property
    def dp_size(self) -> int:
        """Ranks, or groups of them, with requests of their own."""
        return max(len(self.ranks) // self.tp_size, 1)

    @property
    def kv_bytes(self) -> int:
        """Bytes of all pages. On a CPU, pages take memory when they are used for the first time."""
        return self.num_pages * self.page_bytes + self.windows.kv_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerFacts:
    """Sizes that bound every decision of the scheduler."""

    memory: MemoryFacts
    vocab_size: int
    hidden_size: int  # channels of a hidden state of the target
    takes_embeds: bool  # whether embeddings can stand in place of tokens
    draft: DraftFacts
    max_chunks: int  # prompts that may share one step
    host: HostSettings
    depth: int  # steps in flight while the next is planned
    snapshots: SnapshotFacts = NO_SNAPSHOTS

    @property
    def num_pages(self) -> int:
        """Usable KV pages; page 0 is not counted."""
        return self.memory.num_pages

    @property
    def reach(self) -> int:
        """Positions past the cached ones that a decoding row may write in a step."""
        return self.draft.reach(self.draft.budget)

    @property
    def most_window_pages(self) -> int:
        """Window pages that one row can need at the same time."""
        return most_window_pages(
            self.memory.windows.window.tokens,
            page_size=self.host.page_size,
            step_tokens=self.host.max_step_tokens,
            reach=self.reach,
            depth=self.depth,
        )


class PendingResult(Protocol):
    """A step in flight."""

    def wait(self) -> StepResult: ...


class GroupRunner(Protocol):
    """Runs one batch per rank as one step; a rank without requests runs padding."""

    @property
    def loss(self) -> str:
        """Why the ranks are lost; empty while all of them live."""
        ...

    def submit(self, batches: Sequence[ScheduledBatch]) -> Sequence[PendingResult]: ...

    def close(self) -> None:
        """End the ranks."""
        ...


class StepRunner(Protocol):
    """Runs steps in the order they are submitted."""

    @property
    def counts(self) -> StepCounts: ...

    def submit(self, batch: ScheduledBatch) -> PendingResult: ...

    def find_tokens(self, span: EmbeddedSpan) -> tuple[int, ...]:
        """The token that each embedding is of; -1 for one that no token has."""
        ...

    def restart(self) -> None:
        """Forget all rows and steps after a failure; raises if the device is lost."""
        ...
