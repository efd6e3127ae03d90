"""How gpt-oss stores its experts: gates and ups alternate, and all projections have biases."""

from collections.abc import Iterator

import torch

from outrider.models.expert_tensors import (
    STACKED_DOWN,
    STACKED_GATE_UP,
    ExpertSizes,
    Read,
    Shape,
)
from outrider.ops.moe.expert_gate import ExpertBiases

_GATE_UP, _DOWN = f"mlp{STACKED_GATE_UP}", f"mlp{STACKED_DOWN}"
PACKED_GATE_UP = "gate_up_proj.weight"  # of one expert, with all gates before the ups
_GATE_UP_BIAS = _GATE_UP + "_bias"
_DOWN_BIAS = _DOWN + "_bias"


class _Biases:
    """What both forms share: the router, and the biases of all experts."""

    router = "mlp.router.weight"
    router_bias = "mlp.router.bias"

    def __init__(self, sizes: ExpertSizes) -> None:
        self._sizes = sizes

    def read_biases(self, read: Read, held: range) -> ExpertBiases:
        gate_up, down = (read(name)[held.start : held.stop] for name in (_GATE_UP_BIAS, _DOWN_BIAS))
        return ExpertBiases(gates_first(gate_up, 1).contiguous(), down)

    def _shared_shapes(self) -> Iterator[tuple[str, Shape]]:
        num, both, hidden = self._sizes.gate_up
        yield self.router, (num, hidden)
        yield self.router_bias, (num,)
        yield _GATE_UP_BIAS, (num, both)
        yield _DOWN_BIAS, (num, hidden)


class PairedExperts(_Biases):
    """Two weights per expert: MXFP4 ones, as `expert_blocks` finds them."""

    def shapes(self) -> Iterator[tuple[str, Shape]]:
        num, both, hidden = self._sizes.gate_up
        yield from self._shared_shapes()
        for name in self.gate_up_names(range(num)):
            yield name, (both, hidden)
        for name in self.down_names(range(num)):
            yield name, (hidden, both // 2)

    def gate_up_names(self, held: range) -> tuple[str, ...]:
        return tuple(f"mlp.experts.{expert}.{PACKED_GATE_UP}" for expert in held)

    def down_names(self, held: range) -> tuple[str, ...]:
        return tuple(f"mlp.experts.{expert}.down_proj.weight" for expert in held)

    def read_gate_up(self, read: Read, into: torch.Tensor, held: range) -> None:
        for place, name in enumerate(self.gate_up_names(held)):
            into[place].copy_(read(name))

    def read_down(self, read: Read, into: torch.Tensor, held: range) -> None:
        for place, name in enumerate(self.down_names(held)):
            into[place].copy_(read(name))


class StackedPairs(_Biases):
    """Two dense tensors for all experts of a layer, [experts, in, out]."""

    def shapes(self) -> Iterator[tuple[str, Shape]]:
        num, both, hidden = self._sizes.gate_up
        yield from self._shared_shapes()
        yield _GATE_UP, (num, hidden, both)
        yield _DOWN, (num, both // 2, hidden)

    def gate_up_names(self, held: range) -> tuple[str, ...]:
        del held
        return ()

    def down_names(self, held: range) -> tuple[str, ...]:
        del held
        return ()

    def read_gate_up(self, read: Read, into: torch.Tensor, held: range) -> None:
        stored = read(_GATE_UP)[held.start : held.stop]
        into.copy_(gates_first(stored.transpose(1, 2), 1))

    def read_down(self, read: Read, into: torch.Tensor, held: range) -> None:
        into.copy_(read(_DOWN)[held.start : held.stop].transpose(1, 2))


def gates_first(pairs: torch.Tensor, dim: int) -> torch.Tensor:
    """Gates and ups that alternate along a dimension, with all gates before the ups."""
    first = pairs.transpose(0, dim)
    return torch.cat([first[0::2], first[1::2]]).transpose(0, dim)
