"""What a front end submits to the engine and what it hears back."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from outrider.wire.draft_budget import Budget
from outrider.wire.row_sampling import RowSampling
from outrider.wire.step_result import RoundTrace, TokenLogprobs

FinishReason = Literal["running", "stop", "length", "abort", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When a request ends by its tokens alone. Stop strings are the front end's business."""

    max_tokens: int
    stop_ids: frozenset[int]  # end-of-sequence ids included unless the user ignores them


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """One request: token ids in, a law of sampling, limits, and its place in the queue."""

    request_id: str
    prompt: tuple[int, ...]
    sampling: RowSampling
    limits: Limits
    budget: Budget  # the most this request may draft; the engine's own budget bounds it
    priority: int = 0  # smaller goes first


# The next two are made for every row of every step; a named tuple costs a third of a data class.


class Progress(NamedTuple):
    """Counts of one request so far. A round keeps some of its drafts and adds the bonus token."""

    cached: int  # prompt tokens served by the prefix cache at first admission
    rounds: int
    drafted: int
    accepted_per_depth: tuple[int, ...]  # rounds that kept a draft at depth 1, 2, ...
    preemptions: int

    @property
    def num_accepted(self) -> int:
        return sum(self.accepted_per_depth)


NOTHING_YET = Progress(cached=0, rounds=0, drafted=0, accepted_per_depth=(), preemptions=0)


class RequestUpdate(NamedTuple):
    """News of one request after a step. The finishing stop id, if any, is the last token."""

    request_id: str
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    finish: FinishReason
    progress: Progress
    queued_s: float = 0.0  # until it first had a row
    rounds: tuple[RoundTrace, ...] = ()  # that emitted these tokens, when asked
    reason: str = ""  # one line about what went wrong, when `finish` is "error"
    # Of the prompt from the position asked for on, once, with the first news after the prompt.
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
