"""The target's states of sequences that a run reads again: later epochs need no target."""

from collections.abc import Sequence

import torch

from outrider.train.packed_target import PackedHiddenStates
from outrider.train.training_log import log_line

_GB = 10**9


class StateCache:
    """Owns the states of the first sequences of a run, on the device.

    A target is frozen, so its states of a sequence are the same in every epoch. They take 8 kB a
    token in a model of width 1024, and computing them is a third of a step.
    """

    def __init__(self, states: torch.Tensor, *, hidden: int) -> None:
        # states [sequences, length, aux layers * hidden + hidden]
        self._states, self._hidden = states, hidden
        self._is_there = [False] * states.shape[0]

    def __len__(self) -> int:
        return len(self._is_there)

    def read(self, numbers: Sequence[int]) -> PackedHiddenStates | None:
        """The states of these sequences; None if one of them was never written."""
        if not all(number < len(self) and self._is_there[number] for number in numbers):
            return None
        states = torch.stack([self._states[number] for number in numbers])
        return PackedHiddenStates(
            aux_hidden_states=states[..., : -self._hidden].contiguous(),
            hidden_states=states[..., -self._hidden :],
        )

    def write(self, numbers: Sequence[int], states: PackedHiddenStates) -> None:
        """Keep the states of those sequences that have a place here."""
        for place, number in enumerate(numbers):
            if number < len(self):
                kept = self._states[number]
                aux = states.aux_hidden_states[place]
                kept[:, : aux.shape[-1]].copy_(aux)
                kept[:, aux.shape[-1] :].copy_(states.hidden_states[place])
                self._is_there[number] = True


def make_state_cache(
    *,
    num: int,  # sequences of the run
    length: int,
    hidden: int,
    num_aux: int,
    limit_gb: float,
    dtype: torch.dtype,
    device: torch.device,
) -> StateCache | None:
    """Room for as many sequences as fit into the limit; None if there is none."""
    bytes_each = length * (num_aux + 1) * hidden * dtype.itemsize
    places = min(num, int(limit_gb * _GB / bytes_each))
    if places < 1:
        return None
    shape = (places, length, (num_aux + 1) * hidden)
    try:
        states = torch.empty(shape, dtype=dtype, device=device)
    except torch.OutOfMemoryError:
        log_line(f"no {places * bytes_each / _GB:.0f} GB are free: the target runs in every step")
        return None
    log_line(f"the target's states of {places} of {num} sequences are kept")
    return StateCache(states, hidden=hidden)
