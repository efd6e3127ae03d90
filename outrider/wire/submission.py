"""What a front end submits to the engine, and the updates it gets back."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from outrider.wire.adapter import NO_ADAPTER, Adapter, prefix_salt
from outrider.wire.draft_budget import Budget
from outrider.wire.embedded_span import EmbeddedSpan
from outrider.wire.failure import NO_FAILURE, RequestFailure
from outrider.wire.hidden_states import HiddenStates
from outrider.wire.image_span import ImageSpan
from outrider.wire.row_sampling import RowSampling
from outrider.wire.step_result import RoundTrace, TokenLogprobs
from outrider.wire.transfer_order import NO_TRANSFER, TransferOrder

FinishReason = Literal["running", "stop", "length", "abort", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When a request ends by its tokens alone. Stop strings are handled by the front end."""

    max_tokens: int
    stop_ids: frozenset[int]  # end-of-sequence ids included unless the user ignores them


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """One request: token ids, sampling, limits, and its place in the queue."""

    request_id: str
    prompt: tuple[int, ...]
    sampling: RowSampling
    limits: Limits
    budget: Budget  # the most this request may draft; the engine's own budget bounds it
    priority: int = 0  # smaller goes first
    cache_salt: str = ""  # cached prefixes are shared among requests of the same salt
    transfer: TransferOrder = NO_TRANSFER
    embeds: tuple[EmbeddedSpan, ...] = ()  # positions of the prompt without tokens, ascending
    adapter: Adapter = NO_ADAPTER
    images: tuple[ImageSpan, ...] = ()  # positions of the prompt with image tokens, ascending

    @property
    def spans(self) -> tuple[EmbeddedSpan | ImageSpan, ...]:
        """All that stands in place of tokens."""
        return (*self.embeds, *self.images)

    @property
    def prefix_salt(self) -> bytes:
        """Cached prefixes are shared among requests that have this in common."""
        return prefix_salt(self.adapter, self.cache_salt)


# The next two are made for every row of every step. A named tuple costs a third of a dataclass.


class Progress(NamedTuple):
    """Counts of one request so far."""

    cached: int  # prompt tokens served by the prefix cache at first admission
    rounds: int
    drafted: int
    accepted_per_depth: tuple[int, ...]  # rounds that accepted a draft at depth 1, 2, ...
    preemptions: int

    @property
    def num_accepted(self) -> int:
        return sum(self.accepted_per_depth)


NOTHING_YET = Progress(cached=0, rounds=0, drafted=0, accepted_per_depth=(), preemptions=0)


class RequestUpdate(NamedTuple):
    """The new tokens of one request in a step. A stop id that ended it is the last token."""

    request_id: str
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    finish: FinishReason
    progress: Progress
    queued_s: float = 0.0  # until it first had a row
    rounds: tuple[RoundTrace, ...] = ()  # the rounds that emitted these tokens, when requested
    failure: RequestFailure = NO_FAILURE  # what went wrong, when `finish` is "error"
    # From the requested position on; sent once, with the first update after the prompt.
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    # One record, when requested: the prompt's, then those of the positions that chose the tokens.
    hidden_states: tuple[HiddenStates, ...] = ()

    @property
    def reason(self) -> str:
        """What went wrong, in one line; empty if nothing did."""
        return self.failure.reason
