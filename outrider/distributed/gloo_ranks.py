"""Ranks that exchange tensors by gloo: any device, by way of the host."""

from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import ProcessGroup, ProcessGroupGloo, Store

from outrider.distributed.checked_gather import CheckedGather, CollectiveKind
from outrider.distributed.rank_group import ExpertRanks
from outrider.ops.graph_break import graph_break

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
        self._checked = CheckedGather(self._group, size=size)

    def expect_prompt_ranks(self) -> None:
        """From now on all ranks run the same steps: a rank that is late is stuck."""
        self._backend.set_timeout(timedelta(seconds=self._timeout_s))

    def end_step(self) -> None:
        """Raise if another rank made other collectives in this step."""
        self._checked.end_step()

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
        own = torch.tensor([value]).view(torch.uint8)
        return int(self._checked.gather(CollectiveKind.LEAST, own).view(torch.int64).min())

    def _add_up(self, x: torch.Tensor) -> None:
        """gloo's own sum has another order for every number of ranks and size of tensors."""
        parts = x.new_empty(self.size, *x.shape)
        self._gather(x, parts)
        total = parts[0].float()
        for part in parts[1:]:
            total += part
        x.copy_(total)

    def _gather(self, x: torch.Tensor, parts: torch.Tensor) -> None:
        gathered = self._checked.gather(CollectiveKind.GATHER, _bytes_of(x))
        parts.view(self.size, -1).view(torch.uint8).copy_(gathered)

    def _exchange(self, parts: torch.Tensor, received: torch.Tensor) -> None:
        sent = _bytes_of(parts)
        self._checked.agree(CollectiveKind.EXCHANGE, sent.shape[0])
        taken = torch.empty_like(sent)
        self._group.alltoall_base(taken, sent, [], []).wait()
        received.view(-1).view(torch.uint8).copy_(taken)

    def _take_largest(self, x: torch.Tensor) -> None:
        parts = x.new_empty(self.size, *x.shape)
        self._gather(x, parts)
        x.copy_(parts.amax(0))

    def _copy_first(self, x: torch.Tensor) -> None:
        sent = _bytes_of(x)
        first = self._checked.agree(CollectiveKind.COPY_FIRST, sent.shape[0], first=sent)[0]
        taken = torch.empty_like(sent)
        taken[: first.shape[0]] = first
        if taken.shape[0] > first.shape[0]:
            rest = sent[first.shape[0] :].clone()
            self._group.broadcast(rest, root=0).wait()
            taken[first.shape[0] :] = rest
        x.copy_(taken.view(x.dtype).view(x.shape))


def _bytes_of(x: torch.Tensor) -> torch.Tensor:  # uint8 [bytes], on the host: gloo lacks types
    return x.contiguous().view(-1).view(torch.uint8).cpu()
