"""Routers: the layers that select the experts of every token."""

from typing import Protocol

import torch

from outrider.models.layers.mlp import FeedStep
from outrider.ops.linear.linear import Linear
from outrider.ops.moe.routing import Routing, route, score_experts, weigh_experts, without_padding
from outrider.ops.moe.routing_config import RoutingConfig


class Router(Protocol):
    """Selects the experts of every query token; padding is routed to none."""

    def __call__(self, x: torch.Tensor, step: FeedStep) -> Routing: ...  # x [n, hidden]


class TopKRouter:
    """Owns the projection to the scores of all experts."""

    def __init__(
        self,
        routing: RoutingConfig,
        *,
        gate: Linear,  # [hidden -> experts]
        bias: torch.Tensor,  # [experts] float32, for selection only; [0] where there is none
    ) -> None:
        self._routing = routing
        self._gate = gate
        self._bias = bias

    def __call__(self, x: torch.Tensor, step: FeedStep) -> Routing:
        logits = self._gate(x)[: step.slots.shape[0]]
        return route(logits, self._routing, self._bias, step.slots, page_size=step.page_size)


class TableRouter:
    """Owns a table of the experts of every token id; the projection only gives their weights."""

    def __init__(
        self,
        routing: RoutingConfig,
        *,
        gate: Linear,  # [hidden -> experts]
        table: torch.Tensor,  # [vocab, top_k] int64
    ) -> None:
        self._routing = routing
        self._gate = gate
        self._table = table

    def __call__(self, x: torch.Tensor, step: FeedStep) -> Routing:
        scores = score_experts(self._gate(x)[: step.slots.shape[0]], self._routing.score)
        routing = weigh_experts(scores, self._table[step.tokens], self._routing)
        return without_padding(
            routing, step.slots, page_size=step.page_size, num_experts=scores.shape[1]
        )
