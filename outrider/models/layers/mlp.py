"""The feed-forward part of a block: SwiGLU."""

import torch
import torch.nn.functional as F

from outrider.models.layers.linear import Linear


class Mlp:
    """Owns the fused gate and up map, and the down map."""

    def __init__(self, *, gate_up: Linear, down: Linear) -> None:
        self._gate_up = gate_up
        self._down = down

    def __call__(
        self,
        x: torch.Tensor,  # [n, hidden] normalised
        residual: torch.Tensor,  # [n, hidden]
    ) -> torch.Tensor:  # [n, hidden]
        gate, up = self._gate_up(x).chunk(2, dim=-1)  # [n, intermediate] each
        return self._down.plus(F.silu(gate).mul_(up), residual)
