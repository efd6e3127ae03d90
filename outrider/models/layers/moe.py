"""A mixture of experts: a router selects a few of many small feed-forward parts for every token."""

import torch

from outrider.models.layers.mlp import FeedForward, FeedStep
from outrider.models.layers.router import Router
from outrider.ops.moe.experts import Experts


class MoeMlp:
    """The weighted sum of a token's experts, and of the parts that every token runs through."""

    def __init__(
        self, *, router: Router, experts: Experts, shared: tuple[FeedForward, ...] = ()
    ) -> None:
        self._router = router
        self._experts = experts
        self._shared = shared

    def __call__(
        self,
        x: torch.Tensor,  # [n, hidden] normalised; n is num_query or more
        residual: torch.Tensor,  # [n, hidden]
        step: FeedStep,
    ) -> torch.Tensor:  # [n, hidden]
        num_query = step.slots.shape[0]
        for part in self._shared:
            residual = part(x, residual, step)
        self._experts.add_(x[:num_query], self._router(x, step), residual[:num_query])
        return residual
