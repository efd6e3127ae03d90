"""What comes up: the tokens a step emitted, row by row."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprobs:
    """Log-probabilities at one emitted token, of the model's own law before any warp."""

    chosen: float
    rank: int  # 1 is the most likely token
    top: tuple[tuple[int, float], ...]  # (token, logprob), most likely first


@dataclass(frozen=True, slots=True, kw_only=True)
class RowResult:
    """Tokens of one row in order: the kept drafts, then the bonus token. Empty inside a prompt."""

    row: int
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]  # one per token when asked, else empty
    drafted: int  # drafts that were proposed; at most one less than tokens were kept of them


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """The outcome of one step; `rows` has the order of the batch: decodes, then chunks."""

    step: int
    rows: tuple[RowResult, ...]
    has_drafter_failed: bool  # by the time this step was submitted; it drafts nothing any more
