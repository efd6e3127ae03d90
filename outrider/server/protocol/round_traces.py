"""The `trace` of an answer: the draft tree of every round, and which of its nodes were accepted."""

from collections.abc import Sequence

from pydantic import BaseModel

from outrider.frontend.request_state import OutputState
from outrider.frontend.tokenizer.tokenizer import NoTokenizer, Tokenizer
from outrider.wire.step_result import RoundTrace


class RoundNode(BaseModel):
    """A node of a draft tree."""

    token: int
    text: str  # of the token alone; it need not be whole characters
    parent: int  # index among the nodes, -1 for node 0


class RoundToken(BaseModel):
    """A token that a round emitted."""

    token: int
    text: str  # what it adds to the answer: empty inside a character, and for a token that ends it
    depth: int  # of the accepted draft; 0 for the target's own token


class Round(BaseModel):
    """The draft tree after the last token, which is node 0, and what the target emitted."""

    nodes: list[RoundNode]
    path: list[int]  # the accepted nodes, node 0 first
    emitted: list[RoundToken]


class RoundWriter:
    """Writes the rounds of one answer, and counts the tokens written so far."""

    def __init__(self, tokenizer: Tokenizer | NoTokenizer) -> None:
        self._tokenizer = tokenizer
        self._num_tokens = 0

    def write(self, output: OutputState, rounds: Sequence[RoundTrace]) -> list[Round]:
        """The next rounds. The texts of all emitted tokens, joined, are the text of the answer."""
        return [self._round(output, each) for each in rounds]

    def _round(self, output: OutputState, trace: RoundTrace) -> Round:
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
                    text=self._next_text(output),
                    depth=depth if depth <= trace.num_accepted else 0,
                )
                for depth, token in enumerate(trace.emitted, start=1)
            ],
        )

    def _next_text(self, output: OutputState) -> str:
        ends, place = output.ends, self._num_tokens
        self._num_tokens += 1
        first = ends[place - 1] if place else 0
        is_last = output.is_finished and self._num_tokens == len(ends)
        return output.text[first : None if is_last else ends[place]]
