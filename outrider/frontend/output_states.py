"""The hidden states of one output as the user gets them."""

from array import array
from typing import TYPE_CHECKING

from outrider.wire.hidden_states import HiddenStates, RowStatesMode

if TYPE_CHECKING:
    import numpy as np


class OutputStates:
    """Owns the hidden states of one output: all of them, or the last."""

    def __init__(self, mode: RowStatesMode) -> None:
        self._mode = mode
        self.width = 0  # channels; known when the first ones come
        self.values = bytearray()  # [positions, width] float32

    @property
    def is_wanted(self) -> bool:
        return self._mode != "none"

    def push(self, states: HiddenStates, *, num_dropped: int) -> None:
        """Take what an update brings, without the last ones: their tokens are past the end."""
        count = len(states) - num_dropped
        if count <= 0:
            return
        self.width = states.width
        kept = states.upto(count)
        if self._mode == "all":
            self.values += kept.values
        else:
            self.values = bytearray(kept.from_position(kept.first + count - 1).values)

    def array(self) -> "np.ndarray":  # [positions, width] float32
        """As an array over a copy."""
        import numpy as np  # `--help` imports this module

        return np.frombuffer(bytes(self.values), dtype="<f4").reshape(-1, self.width or 1)

    def rows(self) -> list[list[float]]:  # [positions, width]
        """As JSON has them."""
        numbers = array("f", bytes(self.values)).tolist()
        return [numbers[at : at + self.width] for at in range(0, len(numbers), self.width or 1)]
