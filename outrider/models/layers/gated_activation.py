"""The gated half of a feed-forward part: silu(gate) * up, or with gelu, from one projection."""

import math
from typing import Protocol

import torch

from outrider.models.family import Activation
from outrider.ops.fixed_activations import gelu_tanh, sigmoid
from outrider.ops.linear.linear import FixedLinear, Linear, StreamedLinear
from outrider.ops.linear.quantised_linear import QuantisedLinear
from outrider.ops.linear.swiglu import swiglu


class Gate(Protocol):
    """The activated gate times the other half of the projection, for every row."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...  # [n, in] -> [n, intermediate]


class SplitGate:
    """The projection, then the gate: for any linear layer."""

    def __init__(self, gate_up: Linear, limit: float = math.inf) -> None:
        self.gate_up = gate_up
        self.limit = limit

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return swiglu(self.gate_up(x), self.limit)


class StreamedGate:
    """The gate in the epilogue of the projection."""

    def __init__(self, gate_up: StreamedLinear | FixedLinear | QuantisedLinear) -> None:
        self.gate_up = gate_up

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.gate_up.swiglu(x)


class GeluGate:
    """gelu(gate) * up."""

    def __init__(self, gate_up: Linear) -> None:
        self._gate_up = gate_up

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self._gate_up(x).chunk(2, dim=-1)
        return gelu_tanh(gate) * up


class SharedGate:
    """A gate times a sigmoid factor per token, which the linear down projection preserves."""

    def __init__(self, gate: Gate, share: Linear) -> None:  # share [hidden -> 1]
        self._gate = gate
        self._share = share

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._gate(x).mul_(sigmoid(self._share(x)))


def gate_of(gate_up: Linear, activation: Activation = "silu") -> Gate:
    """The gate over a fused projection, in its epilogue if the linear layer has one."""
    if activation == "gelu":
        return GeluGate(gate_up)
    if isinstance(gate_up, StreamedLinear | FixedLinear | QuantisedLinear):
        return StreamedGate(gate_up)
    return SplitGate(gate_up)
