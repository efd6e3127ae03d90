"""Hidden states of a target on their way to the client."""

from dataclasses import dataclass
from typing import Literal

from outrider.wire.positioned_vectors import PositionedVectors

# last: of the position that chose the last token. all: of every position that ran, the prompt's
# too. SGLang's CaptureHiddenMode has the same three.
HiddenStatesMode = Literal["none", "last", "all"]
# sum: one vector, the sum over all positions of the prompt; embeddings of texts are made of it.
RowStatesMode = Literal["none", "last", "all", "sum"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenStates(PositionedVectors):
    """The final, normalised hidden states of consecutive positions of one text.

    The hidden state of a position is computed from the tokens up to it, and chooses the next one.
    In the result of a decode row `first` is -1: the host does not know the length of the row.
    """


NO_HIDDEN_STATES = HiddenStates(first=0, width=0, values=b"")
