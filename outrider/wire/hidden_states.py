"""Hidden states of a target on their way to the client, as plain bytes."""

from dataclasses import dataclass, replace
from typing import Literal

# last: of the position that chose the last token. all: of every position that ran, the prompt's
# too. SGLang's CaptureHiddenMode has the same three.
HiddenStatesMode = Literal["none", "last", "all"]

_ITEM_BYTES = 4  # float32


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenStates:
    """The final, normalised hidden states of consecutive positions of one text.

    The hidden state of a position is computed from the tokens up to it, and chooses the next one.
    """

    # The first position; -1 in the result of a decode row, whose length the host does not know.
    first: int
    width: int  # channels of one
    values: bytes  # [positions, width] float32, little-endian

    def __len__(self) -> int:
        return len(self.values) // (_ITEM_BYTES * self.width) if self.width else 0

    def from_position(self, position: int) -> "HiddenStates":
        """Those of this position and later ones."""
        skipped = max(position - self.first, 0)
        values = self.values[skipped * _ITEM_BYTES * self.width :]
        return replace(self, first=self.first + skipped, values=values)

    def upto(self, count: int) -> "HiddenStates":
        """The first ones."""
        return replace(self, values=self.values[: count * _ITEM_BYTES * self.width])

    def placed(self, first: int) -> "HiddenStates":
        """The same at another position."""
        return replace(self, first=first)


NO_HIDDEN_STATES = HiddenStates(first=0, width=0, values=b"")
