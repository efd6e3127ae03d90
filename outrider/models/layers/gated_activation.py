"""The gated half of a feed-forward part: silu(gate) * up, both from one fused map."""

import math
from typing import Protocol

import torch
import torch.nn.functional as F

from outrider.models.layers.linear import FixedLinear, Linear, StreamedLinear


class Gate(Protocol):
    """The activated gate times the other half of the map, for every row."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...  # [n, in] -> [n, intermediate]


class SplitGate:
    """The map, then the gate: for any linear map."""

    def __init__(self, gate_up: Linear, limit: float = math.inf) -> None:
        self._gate_up = gate_up
        self._limit = limit

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return swiglu(self._gate_up(x), self._limit)


class StreamedGate:
    """The gate in the epilogue of the map, where the map has one."""

    def __init__(self, gate_up: StreamedLinear | FixedLinear) -> None:
        self.gate_up = gate_up

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.gate_up.swiglu(x)


class SharedGate:
    """A gate of a part of which every token asks for a share; the down map keeps shares."""

    def __init__(self, gate: Gate, share: Linear) -> None:  # share [hidden -> 1]
        self._gate = gate
        self._share = share

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._gate(x).mul_(torch.sigmoid(self._share(x)))


def gate_of(gate_up: Linear) -> Gate:
    """The gate over a fused map, in its epilogue where the map can."""
    if isinstance(gate_up, StreamedLinear | FixedLinear):
        return StreamedGate(gate_up)
    return SplitGate(gate_up)


def swiglu(
    gate_up: torch.Tensor,  # [n, 2 * intermediate]
    limit: float = math.inf,
) -> torch.Tensor:  # [n, intermediate]
    """The second half of every row, gated by the first; gates are cut at the limit, and the second
    half at both of its signs.
    """
    if gate_up.is_cuda:
        from outrider.ops.linear.swiglu_triton import swiglu as launch

        return launch(gate_up, limit)
    gate, up = gate_up.chunk(2, dim=-1)
    if limit < math.inf:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return F.silu(gate).mul_(up)
