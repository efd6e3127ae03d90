"""Experts that read weighted inputs (Llama-4), where others return weighted outputs."""

import torch

from outrider.ops.moe.experts import Experts
from outrider.ops.moe.routing import Routing


class WeightedInputs:
    """A token runs as one token for each of its experts, which has that expert alone."""

    def __init__(self, experts: Experts) -> None:
        self._experts = experts

    def add_(self, x: torch.Tensor, routing: Routing, residual: torch.Tensor) -> None:
        (num_tokens, hidden), top_k = x.shape, routing.experts.shape[1]
        inputs = x[:, None] * routing.weights[..., None].to(x.dtype)  # [n, top_k, hidden]
        alone = Routing(
            experts=routing.experts.reshape(-1, 1),
            weights=torch.ones_like(routing.weights).view(-1, 1),
        )
        if top_k == 1:
            self._experts.add_(inputs[:, 0], alone, residual)
            return
        outputs = x.new_zeros(num_tokens * top_k, hidden)
        self._experts.add_(inputs.view(-1, hidden), alone, outputs)
        residual.add_(outputs.view(num_tokens, top_k, hidden).sum(1))  # in the order of the token
