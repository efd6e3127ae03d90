"""How the tokens of an answer came, for those who set `trace`: the tree of every round in words."""

from collections.abc import Sequence

from pydantic import BaseModel

from outrider.frontend.request_state import OutputState
from outrider.frontend.tokenizer.tokenizer import NoTokenizer, Tokenizer
from outrider.wire.step_result import RoundTrace


class RoundNode(BaseModel):
    """A node of a draft tree."""

    token: int
    text: str  # of the token alone, which need not be whole characters
    parent: int  # place among the nodes, -1 for the first


class RoundToken(BaseModel):
    """A token that a round emitted."""

    token: int
    text: str  # its share of the answer: empty inside a character, and of a token that ends it
    depth: int  # of the draft that was kept; 0 if it is the target's own


class Round(BaseModel):
    """What was drafted after the last token, node 0, and what the target made of it."""

    nodes: list[RoundNode]
    path: list[int]  # the nodes that the target agreed with, node 0 first
    emitted: list[RoundToken]


class RoundWriter:
    """Owns how many tokens of one answer have been told."""

    def __init__(self, tokenizer: Tokenizer | NoTokenizer) -> None:
        self._tokenizer = tokenizer
        self._num_tokens = 0

    def write(self, transcript: OutputState, rounds: Sequence[RoundTrace]) -> list[Round]:
        """The rounds that follow those told before; their texts make up the answer's text."""
        return [self._round(transcript, each) for each in rounds]

    def _round(self, transcript: OutputState, trace: RoundTrace) -> Round:
        pairs = zip(trace.tokens, trace.parents, strict=True)
        return Round(
            nodes=[
                RoundNode(token=token, text=self._tokenizer.token_text(token), parent=parent)
                for token, parent in pairs
            ],
            path=list(trace.path),
            emitted=[
                RoundToken(
                    token=token,
                    text=self._next_text(transcript),
                    depth=depth if depth <= trace.num_accepted else 0,
                )
                for depth, token in enumerate(trace.emitted, start=1)
            ],
        )

    def _next_text(self, transcript: OutputState) -> str:
        ends, place = transcript.ends, self._num_tokens
        self._num_tokens += 1
        first = ends[place - 1] if place else 0
        is_last = transcript.is_finished and self._num_tokens == len(ends)
        return transcript.text[first : None if is_last else ends[place]]
