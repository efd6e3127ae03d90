"""The outcome of one request: an answer with its times, or a failure with its kind.

             ttft              itl       itl
sent |----------------| text |------| text |------| text ... | ended
"""

import itertools
from dataclasses import dataclass

from outrider.bench.serve.server_acceptance import ServerAcceptance


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerTokens:
    """Tokens of one request. Without the server's usage, chunks are counted and prompts are not."""

    prompt: int
    output: int
    is_counted_by_server: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """When things happened, by the client's clock."""

    sent_s: float
    texts_s: tuple[float, ...]  # arrival of every chunk with text
    ended_s: float

    @property
    def ttft_s(self) -> float:
        return self.texts_s[0] - self.sent_s

    @property
    def latency_s(self) -> float:
        """From sending to the last text, as in other load generators."""
        return self.texts_s[-1] - self.sent_s

    @property
    def itls_s(self) -> tuple[float, ...]:
        """Gaps between chunks. A chunk of a server that speculates often holds several tokens."""
        return tuple(after - before for before, after in itertools.pairwise(self.texts_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAnswer:
    """A stream that came to its end with text in it."""

    index: int  # of the request
    timeline: Timeline
    tokens: AnswerTokens
    acceptances: tuple[ServerAcceptance, ...]  # as reported with the answer; one or none

    @property
    def tpots_s(self) -> tuple[float, ...]:
        """Mean time per token after the first; a single token has none."""
        texts_s, num_more = self.timeline.texts_s, self.tokens.output - 1
        return ((texts_s[-1] - texts_s[0]) / num_more,) if num_more > 0 else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A request without a complete answer."""

    index: int
    kind: str
    message: str
    sent_s: float
    ended_s: float


Outcome = ServerAnswer | Failure
