"""The outputs of requests. The first fields are vLLM's; usage, timing, seed and acceptance ours.

A field is None where vLLM's is: the request still runs, or the field was not requested.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from outrider.wire.step_result import RoundTrace

if TYPE_CHECKING:  # `--help` does not need it
    import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class Logprob:
    """One token's log-probability under the model itself, before any logits processing."""

    logprob: float
    rank: int  # 1 is the most likely token; 0 of a token that was named, not ranked
    decoded_token: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """How many drafts of one output were accepted. Plain decoding drafts nothing."""

    rounds: int
    drafted: int
    kept_per_position: list[int]  # rounds that accepted the first draft, the second, ...

    @property
    def kept(self) -> int:
        """Accepted drafts."""
        return sum(self.kept_per_position)

    @property
    def accept_length(self) -> float:
        """Mean tokens per round: accepted drafts plus the bonus token."""
        return 1.0 + self.kept / self.rounds if self.rounds else 1.0

    @property
    def accept_rate(self) -> float:
        """Share of the drafted tokens that were accepted."""
        return self.kept / self.drafted if self.drafted else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionOutput:
    """One answer. An ending stop id stays in `token_ids`, as in vLLM, but not in `text`."""

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None
    logprobs: list[dict[int, Logprob]] | None
    finish_reason: Literal["stop", "length", "abort", "error"] | None
    stop_reason: int | str | None  # the stop id or string, or the error; None for end of sequence
    seed: int
    acceptance: Acceptance
    rounds: list[RoundTrace] = field(
        default_factory=list
    )  # when requested; they emitted `token_ids`
    # [positions, hidden] float32, when requested: of the position that chose the last token, or of
    # every position that ran. The last token has not run.
    hidden_states: "np.ndarray | None" = field(default=None, compare=False)

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    @property
    def error(self) -> str:
        """Why the engine could not go on with this answer, in one line; empty if it could."""
        return str(self.stop_reason) if self.finish_reason == "error" else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamDelta:
    """The new text and tokens of one output; the last delta has the finish reason."""

    index: int
    text: str
    token_ids: list[int]
    finish_reason: Literal["stop", "length", "abort", "error"] | None
    rounds: list[RoundTrace] = field(default_factory=list)  # when requested


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of one request, over all its outputs."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int  # prompt tokens whose KV was already there


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds since the request was submitted; waiting for a free row counts."""

    first_token_s: float
    total_s: float
    tokens_per_s: float  # after the first token, so that the prompt's length does not blur it
    preemptions: int  # times that its pages were taken and it was computed again


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutput:
    """One request: its prompt and its `n` outputs in order."""

    request_id: str
    prompt: str | None  # None when token ids were given
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    usage: Usage
    timing: Timing
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None  # when requested, one per token

    @property
    def error(self) -> str:
        """The error of the first output that failed; empty if none failed."""
        return next((output.error for output in self.outputs if output.error), "")
