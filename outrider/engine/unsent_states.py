"""The hidden states of one request between the step that computed them and its next update."""

from dataclasses import replace

from outrider.wire.hidden_states import HiddenStates, RowStatesMode


class UnsentStates:
    """Owns hidden states that were computed and not reported yet."""

    def __init__(self, mode: RowStatesMode, *, num_sent: int) -> None:
        self._mode = mode
        self._next = num_sent  # the first position that was not taken in
        self._unsent: list[HiddenStates] = []

    def most_cached(self, num_tokens: int) -> int:
        """Of so many tokens, those that need not run for their hidden states."""
        match self._mode:
            case "all":
                return min(self._next, num_tokens)
            case "sum":
                return 0  # a part of the sum would count twice after a preemption
            case _:
                return num_tokens

    def note(self, states: HiddenStates) -> None:
        """Take in hidden states. A text computed again after a preemption brings old ones, too."""
        if self._mode == "sum":
            self._unsent = [self._unsent[0].plus(states) if states.first else states]
            return
        new = states.from_position(self._next) if self._mode == "all" else states
        if not len(new):
            return
        assert self._mode == "last" or new.first == self._next, "a position was left out"
        self._unsent.append(new)
        self._next = new.first + len(new)

    def take(self) -> tuple[HiddenStates, ...]:
        """All that was not reported yet, as one record if there is any."""
        if not self._unsent:
            return ()
        values = b"".join(each.values for each in self._unsent)
        states, self._unsent = replace(self._unsent[0], values=values), []
        return (states,)
