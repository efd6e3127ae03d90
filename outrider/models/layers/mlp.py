"""The feed-forward part of a decoder layer: SwiGLU, and what every such part is given."""

from dataclasses import dataclass
from typing import Protocol

import torch

from outrider.models.layers.gated_activation import Gate
from outrider.ops.linear.linear import Linear


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedStep:
    """The query tokens of a step. Routers read them; a dense part ignores them."""

    tokens: torch.Tensor  # [num_query] int64
    slots: torch.Tensor  # [num_query] int64; those below page_size are on page 0: padding
    page_size: int


class FeedForward(Protocol):
    """The residual plus the output of the part for every row; no row depends on the others."""

    def __call__(
        self,
        x: torch.Tensor,  # [n, hidden] normalised; n is num_query or more
        residual: torch.Tensor,  # [n, hidden] may be overwritten
        step: FeedStep,
    ) -> torch.Tensor: ...  # [n, hidden]


class Mlp:
    """Owns the gate and the down projection."""

    def __init__(self, *, gate: Gate, down: Linear) -> None:
        self.gate = gate
        self.down = down

    def __call__(
        self,
        x: torch.Tensor,  # [n, hidden] normalised
        residual: torch.Tensor,  # [n, hidden]
        step: FeedStep,
    ) -> torch.Tensor:  # [n, hidden]
        del step
        return self.down.plus(self.gate(x), residual)
