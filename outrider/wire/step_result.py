"""What comes up: the tokens a step emitted, row by row."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprobs:
    """Log-probabilities at one emitted token, of the model's own law before any warp."""

    chosen: float
    rank: int  # 1 is the most likely token
    top: tuple[tuple[int, float], ...]  # (token, logprob), most likely first
    named: tuple[float, ...] = ()  # of the tokens that the request named, in its order


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptScores:
    """Log-probabilities of consecutive tokens of a row's text, from position `first` on."""

    first: int
    logprobs: tuple[TokenLogprobs, ...]


NO_SCORES = PromptScores(first=0, logprobs=())


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTrace:
    """One round as it went: what was drafted, what the target agreed with, what it emitted.

    The step at the end of a prompt is a round of one node, its last token: rounds account for every
    token of an output. Kept drafts come first in `emitted`; one token more is the target's own.
    """

    tokens: tuple[int, ...]  # of every node; node 0 was emitted before the round
    parents: tuple[int, ...]  # index of each node's parent, -1 for node 0
    path: tuple[int, ...]  # agreed nodes, node 0 first
    emitted: tuple[int, ...]

    @property
    def num_accepted(self) -> int:
        """Drafts that became part of the output."""
        return len(self.path) - 1

    @property
    def has_bonus(self) -> bool:
        """Whether its last token is the target's own; an answer may end on a kept draft."""
        return len(self.emitted) > self.num_accepted

    def cut(self, num_tokens: int) -> "RoundTrace":
        """The round of an output that ended after this many of its tokens."""
        path, emitted = self.path[: num_tokens + 1], self.emitted[:num_tokens]
        return replace(self, path=path, emitted=emitted)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowDetails:
    """What few rows have to tell besides their tokens."""

    logprobs: tuple[TokenLogprobs, ...] = ()  # one per token when asked
    rounds: tuple[RoundTrace, ...] = ()  # the one that ran, when asked and anything was emitted
    error: str = ""  # why the row cannot go on; its tokens mean nothing then
    scores: PromptScores = NO_SCORES  # of a chunk, when asked


NO_DETAILS = RowDetails()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """The outcome of one step, by columns in the order of the batch: decodes, then chunks."""

    step: int
    tokens: Sequence[tuple[int, ...]]  # kept drafts, then the bonus token; empty inside a prompt
    drafted: Sequence[int]  # drafts that were proposed; at most one less than tokens were kept
    details: Mapping[int, RowDetails]  # by place, of the rows that have any
    busy_s: float  # that the device took for it
    has_drafter_failed: bool  # by the time this step was submitted; it drafts nothing any more
