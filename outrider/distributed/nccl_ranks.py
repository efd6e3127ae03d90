"""Ranks with a GPU each: NCCL collectives, which captured graphs contain."""

from datetime import timedelta

import torch
from torch._C._distributed_c10d import ProcessGroup, ProcessGroupNCCL, Store

from outrider.distributed.rank_group import ExpertRanks


class NcclRanks:
    """Owns a process group. Collectives are launches on the current stream; no host waits.

    Sums are gathered and added in the order of ranks: those of NCCL itself depend on the size of
    the message.
    """

    def __init__(
        self, store: Store, *, rank: int, size: int, device: torch.device, timeout_s: float
    ) -> None:
        options = ProcessGroupNCCL.Options()
        options._timeout = timedelta(seconds=timeout_s)
        self.rank = rank
        self.size = size
        self.experts: ExpertRanks | None = None
        self._device = device
        self._group = ProcessGroup(store, rank, size)
        kind = ProcessGroup.BackendType.NCCL
        self._group._set_default_backend(kind)
        # torch's stubs have no store that is not a default one.
        backend = ProcessGroupNCCL(store, rank, size, options)
        self._group._register_backend(torch.device("cuda"), kind, backend)
        self.least(0)  # connects, which no capture may do

    def expect_prompt_ranks(self) -> None:
        """Nothing: a collective that never ends stops the step, which heartbeats and steps tell."""

    def end_step(self) -> None:
        """Nothing: the launches of a captured graph cannot be counted."""

    def add_up_(self, x: torch.Tensor) -> None:
        parts = self.stack(x)
        total = parts[0].float()
        for part in parts[1:]:
            total += part
        x.copy_(total)

    def stack(self, x: torch.Tensor) -> torch.Tensor:  # [n, width] -> [size, n, width]
        parts = x.new_empty(self.size, *x.shape)
        if x.numel():
            self._group._allgather_base(parts, x.contiguous()).wait()
        return parts

    def exchange(self, parts: torch.Tensor) -> torch.Tensor:  # [size, n, width] both
        received = torch.empty_like(parts)
        if parts.numel():
            self._group.alltoall_base(received, parts.contiguous(), [], []).wait()
        return received

    def join(self, x: torch.Tensor) -> torch.Tensor:  # [n, width] -> [n, size * width]
        return self.stack(x).transpose(0, 1).flatten(1)

    def copy_first_(self, x: torch.Tensor) -> None:
        if x.numel():
            sent = x.contiguous()
            self._group.broadcast(sent, root=0).wait()
            x.copy_(sent)

    def take_largest_(self, x: torch.Tensor) -> None:
        x.copy_(self.stack(x).amax(0))

    def least(self, value: int) -> int:
        return int(self.stack(torch.tensor([value], device=self._device)).min())
