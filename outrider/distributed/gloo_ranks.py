"""Ranks that exchange tensors by gloo: any device, by way of the host."""

from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import ProcessGroup, ProcessGroupGloo, ReduceOp, Store

from outrider.distributed.rank_group import ExpertRanks
from outrider.step.graph_break import graph_break

MAX_LOAD_S = 3600.0  # ranks load at different speeds; a rank that ends is noticed otherwise


class GlooRanks:
    """Owns a process group. A collective is a host call, so it is a graph break in a capture."""

    def __init__(self, store: Store, *, rank: int, size: int, host: str, timeout_s: float) -> None:
        # torch's stubs do not have the options that its module has.
        options: Any = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._devices = [ProcessGroupGloo.create_device(hostname=host)]
        options._timeout = timedelta(seconds=MAX_LOAD_S)
        self.rank = rank
        self.size = size
        self.experts: ExpertRanks | None = None
        # No default group of torch is used: a process may hold several models.
        self._group = ProcessGroup(store, rank, size)
        backend = ProcessGroupGloo(store, rank, size, options)
        kind = ProcessGroup.BackendType.GLOO
        self._group._set_default_backend(kind)
        self._group._register_backend(torch.device("cpu"), kind, backend)
        self._backend = backend
        self._timeout_s = timeout_s

    def expect_prompt_ranks(self) -> None:
        """From now on all ranks run the same steps: a rank that is late is stuck."""
        self._backend.set_timeout(timedelta(seconds=self._timeout_s))

    def add_up_(self, x: torch.Tensor) -> None:
        if x.numel():
            graph_break(self._add_up, x)

    def stack(self, x: torch.Tensor) -> torch.Tensor:  # [n, width] -> [size, n, width]
        parts = x.new_empty(self.size, *x.shape)
        if x.numel():
            graph_break(self._gather, x, parts)
        return parts

    def exchange(self, parts: torch.Tensor) -> torch.Tensor:  # [size, n, width] both
        received = torch.empty_like(parts)
        if parts.numel():
            graph_break(self._exchange, parts, received)
        return received

    def join(self, x: torch.Tensor) -> torch.Tensor:  # [n, width] -> [n, size * width]
        return self.stack(x).transpose(0, 1).flatten(1)

    def copy_first_(self, x: torch.Tensor) -> None:
        if x.numel():
            graph_break(self._copy_first, x)

    def take_largest_(self, x: torch.Tensor) -> None:
        if x.numel():
            graph_break(self._take_largest, x)

    def least(self, value: int) -> int:
        found = torch.tensor([value])
        self._group.allreduce(found, op=ReduceOp.MIN).wait()
        return int(found)

    def _add_up(self, x: torch.Tensor) -> None:
        """gloo's own sum has another order for every number of ranks and size of tensors."""
        parts = x.new_empty(self.size, *x.shape)
        self._gather(x, parts)
        total = parts[0].float()
        for part in parts[1:]:
            total += part
        x.copy_(total)

    def _gather(self, x: torch.Tensor, parts: torch.Tensor) -> None:
        own = x.contiguous().view(-1).view(torch.uint8).cpu()  # as bytes: gloo lacks some types
        gathered = own.new_empty(self.size * own.shape[0])
        self._group._allgather_base(gathered, own).wait()
        parts.view(-1).view(torch.uint8).copy_(gathered)

    def _exchange(self, parts: torch.Tensor, received: torch.Tensor) -> None:
        sent = parts.contiguous().view(-1).view(torch.uint8).cpu()
        taken = torch.empty_like(sent)
        self._group.alltoall_base(taken, sent, [], []).wait()
        received.view(-1).view(torch.uint8).copy_(taken)

    def _take_largest(self, x: torch.Tensor) -> None:
        largest = x.clone().cpu()
        self._group.allreduce(largest, op=ReduceOp.MAX).wait()
        x.copy_(largest)

    def _copy_first(self, x: torch.Tensor) -> None:
        sent = x.contiguous().view(-1).view(torch.uint8).cpu()
        self._group.broadcast(sent, root=0).wait()
        x.copy_(sent.view(x.dtype).view(x.shape))
