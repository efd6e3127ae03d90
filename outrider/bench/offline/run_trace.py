"""One run of an engine step by step, and the two speeds computed from it.

All engines, ours and peers, are measured by these definitions:

first token   from handing over a single request to holding its first token
decode        over the full steps of a run: every row had a token before and gets one now. Prompts
              are read before the first full step, and no row has ended before the last. The rate
              is the tokens of the full steps divided by the time they took.
"""

import itertools
from dataclasses import dataclass

from outrider.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Step:
    """One step of an engine that emitted something."""

    end_s: float  # since the requests were handed over
    tokens: tuple[int, ...]  # emitted by each row


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeSpeed:
    """The speed of the full steps of a run."""

    tokens_per_s: float
    step_s: float


Trace = tuple[Step, ...]


def first_token_s(trace: Trace) -> float:
    """When the first token was emitted."""
    return trace[0].end_s


def decode_speed(trace: Trace) -> DecodeSpeed:
    """The speed while all rows decode together."""
    started = [False] * len(trace[0].tokens)
    total_tokens, total_s, num_steps = 0, 0.0, 0
    for before, step in itertools.pairwise(trace):
        started = [was or new > 0 for was, new in zip(started, before.tokens, strict=True)]
        if all(started) and all(step.tokens):
            total_tokens += sum(step.tokens)
            total_s += step.end_s - before.end_s
            num_steps += 1
    if not num_steps:
        raise ConfigError(
            f"at batch {len(started)} the first answer ended before the last prompt was read; "
            "raise --max-tokens or lower --prompt-tokens"
        )
    return DecodeSpeed(tokens_per_s=total_tokens / total_s, step_s=total_s / num_steps)
