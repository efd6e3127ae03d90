"""Gathers bytes of all ranks, and raises if the ranks do not make the same collective.

gloo itself ends the process if two ranks send different sizes, and silently pairs a collective
with a later one of the same size. So every collective begins with a frame of a fixed size: a header
and the first bytes. Small tensors travel in their frame, so the check costs them no message.
"""

import struct
from enum import IntEnum

import torch
from torch._C._distributed_c10d import ProcessGroup

_HEADER = struct.Struct("<4q")  # step, number of the collective in the step, kind, bytes
_FRAME_BYTES = 8192  # on a loopback as fast as one byte; a row of 4096 bfloat16 fits in two


class CollectiveKind(IntEnum):
    """What ranks do together."""

    GATHER = 1
    COPY_FIRST = 2
    EXCHANGE = 3
    LEAST = 4
    END_STEP = 5


class CheckedGather:
    """Owns the counts of one rank: of its steps, and of the collectives in the current one."""

    def __init__(self, group: ProcessGroup, *, size: int) -> None:
        self._group = group
        self._size = size
        self._step = 0
        self._num_in_step = 0
        self._sent = torch.zeros(_FRAME_BYTES, dtype=torch.uint8)
        self._received = torch.zeros(size, _FRAME_BYTES, dtype=torch.uint8)

    def gather(self, kind: CollectiveKind, own: torch.Tensor) -> torch.Tensor:
        """The bytes of all ranks, [n] -> [size, n]."""
        head = self.agree(kind, own.shape[0], first=own)
        if head.shape[1] == own.shape[0]:
            return head
        rest = own[head.shape[1] :].contiguous()
        others = rest.new_empty(self._size, rest.shape[0])
        self._group._allgather_base(others.view(-1), rest).wait()
        return torch.cat((head, others), dim=1)

    def agree(
        self, kind: CollectiveKind, num_bytes: int, *, first: torch.Tensor | None = None
    ) -> torch.Tensor:  # uint8 [size, what fits of `first`]
        """Check that all ranks are at this collective, and gather the first of their bytes.

        The result is overwritten by the next call.
        """
        self._num_in_step += 1
        header = _HEADER.pack(self._step, self._num_in_step, kind, num_bytes)
        fits = 0 if first is None else min(first.shape[0], _FRAME_BYTES - _HEADER.size)
        self._sent.numpy()[: _HEADER.size] = memoryview(header)
        if first is not None:
            self._sent[_HEADER.size : _HEADER.size + fits] = first[:fits]
        self._group._allgather_base(self._received.view(-1), self._sent).wait()
        headers = self._received.numpy()[:, : _HEADER.size].tobytes()
        if headers != header * self._size:
            raise AssertionError(self._difference(headers))
        return self._received[:, _HEADER.size : _HEADER.size + fits]

    def end_step(self) -> None:
        """Check that all ranks made the same number of collectives since the last call."""
        self.agree(CollectiveKind.END_STEP, 0)
        self._step += 1
        self._num_in_step = 0

    def _difference(self, headers: bytes) -> str:
        places = [_place(*each) for each in _HEADER.iter_unpack(headers)]
        shown = ", ".join(f"rank {rank} {place}" for rank, place in enumerate(places))
        return f"the ranks do not make the same collectives: {shown}"


def _place(step: int, number: int, kind: int, num_bytes: int) -> str:
    names = {int(each): each.name for each in CollectiveKind}
    return f"is at {names.get(kind, '?')} {number} of step {step} with {num_bytes} bytes"
