"""The feed-forward part of a block: SwiGLU."""

import torch

from outrider.models.layers.gate import Gate
from outrider.models.layers.linear import Linear


class Mlp:
    """Owns the gate and the down map."""

    def __init__(self, *, gate: Gate, down: Linear) -> None:
        self._gate = gate
        self._down = down

    def __call__(
        self,
        x: torch.Tensor,  # [n, hidden] normalised
        residual: torch.Tensor,  # [n, hidden]
    ) -> torch.Tensor:  # [n, hidden]
        return self._down.plus(self._gate(x), residual)
