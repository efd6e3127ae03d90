"""The feed-forward part of a block: SwiGLU, and what any such part is given."""

from dataclasses import dataclass
from typing import Protocol

import torch

from outrider.models.layers.gated_activation import Gate
from outrider.models.layers.linear import Linear


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedStep:
    """Who the query tokens of a step are. Experts are chosen by it; a dense part ignores it."""

    tokens: torch.Tensor  # [num_query] int64
    slots: torch.Tensor  # [num_query] int64; those below page_size are on page 0: padding
    page_size: int


class FeedForward(Protocol):
    """The residual plus what the part makes of every row; no row depends on the others."""

    def __call__(
        self,
        x: torch.Tensor,  # [n, hidden] normalised; n is num_query or more
        residual: torch.Tensor,  # [n, hidden] may be overwritten
        step: FeedStep,
    ) -> torch.Tensor: ...  # [n, hidden]


class Mlp:
    """Owns the gate and the down map."""

    def __init__(self, *, gate: Gate, down: Linear) -> None:
        self._gate = gate
        self._down = down

    def __call__(
        self,
        x: torch.Tensor,  # [n, hidden] normalised
        residual: torch.Tensor,  # [n, hidden]
        step: FeedStep,
    ) -> torch.Tensor:  # [n, hidden]
        del step
        return self._down.plus(self._gate(x), residual)
