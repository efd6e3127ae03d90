"""Goes from runtime to engine: the tokens that a step emitted, row by row."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from outrider.wire.failure import NO_FAILURE, RequestFailure
from outrider.wire.hidden_states import NO_HIDDEN_STATES, HiddenStates


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprobs:
    """Log-probabilities at one emitted token, before any logits processing."""

    chosen: float
    rank: int  # 1 is the most likely token
    top: tuple[tuple[int, float], ...]  # (token, logprob), most likely first
    named: tuple[float, ...] = ()  # of the tokens that the request named, in that order


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptScores:
    """Log-probabilities of consecutive tokens of a row's text, from position `first` on."""

    first: int
    logprobs: tuple[TokenLogprobs, ...]


NO_SCORES = PromptScores(first=0, logprobs=())


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTrace:
    """One round: the drafted tree, the accepted path, the emitted tokens.

    The step at the end of a prompt counts as a round of one node, the last prompt token, so rounds
    account for every token of an output. In `emitted` the accepted drafts come first, then the
    bonus token.
    """

    tokens: tuple[int, ...]  # of every node; node 0 was emitted before the round
    parents: tuple[int, ...]  # index of each node's parent, -1 for node 0
    path: tuple[int, ...]  # accepted nodes, node 0 first
    emitted: tuple[int, ...]

    @property
    def num_accepted(self) -> int:
        """Drafts that became part of the output."""
        return len(self.path) - 1

    @property
    def has_bonus(self) -> bool:
        """Whether its last token is the bonus token; an answer may end on an accepted draft."""
        return len(self.emitted) > self.num_accepted

    def cut(self, num_tokens: int) -> "RoundTrace":
        """The round of an output that ended after this many of its tokens."""
        path, emitted = self.path[: num_tokens + 1], self.emitted[:num_tokens]
        return replace(self, path=path, emitted=emitted)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowDetails:
    """What few rows report besides their tokens."""

    logprobs: tuple[TokenLogprobs, ...] = ()  # one per token, when requested
    rounds: tuple[RoundTrace, ...] = ()  # the one that ran, when requested and if it emitted tokens
    failure: RequestFailure = NO_FAILURE  # why the row cannot go on after its tokens
    scores: PromptScores = NO_SCORES  # of a chunk, when requested
    # Of the positions that chose the tokens, or of a chunk, when requested.
    hidden_states: HiddenStates = NO_HIDDEN_STATES


NO_DETAILS = RowDetails()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """The result of one step, by columns in the order of the batch: decodes, then chunks."""

    step: int
    tokens: Sequence[tuple[int, ...]]  # accepted drafts and bonus token; empty inside a prompt
    drafted: Sequence[int]  # number of proposed drafts
    details: Mapping[int, RowDetails]  # of the rows that have any, by place in the batch
    busy_s: float  # device time of the step
    has_drafter_failed: bool  # before this step was submitted; nothing is drafted any more
