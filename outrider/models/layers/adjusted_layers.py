"""Layers whose output is normalised or scaled before it is added to the residual."""

from collections.abc import Callable
from typing import Any

import torch

from outrider.models.layers.attention_layer import Attention, AttentionStep
from outrider.models.layers.mlp import FeedForward, FeedStep

Adjust = Callable[[torch.Tensor], torch.Tensor]  # [n, hidden] both


class Scaled:
    """The output times a constant."""

    def __init__(self, factor: float) -> None:
        self._factor = factor

    def __call__(self, out: torch.Tensor) -> torch.Tensor:
        return out * self._factor


class AdjustedAttention:
    """Of several ranks, the sum of their outputs is adjusted."""

    def __init__(self, attention: Attention, adjust: Adjust) -> None:
        self._attention = attention
        self._adjust = adjust

    def __call__(
        self, x: torch.Tensor, residual: torch.Tensor, layer: Any, step: AttentionStep
    ) -> torch.Tensor:  # [n, hidden]
        out = self._attention(x, torch.zeros_like(residual), layer, step)
        return residual.add_(self._adjust(out))

    def write_kv(self, x: torch.Tensor, layer: Any, step: AttentionStep) -> None:
        self._attention.write_kv(x, layer, step)


class AdjustedFeed:
    """The same for the feed-forward part."""

    def __init__(self, feed: FeedForward, adjust: Adjust) -> None:
        self._feed = feed
        self._adjust = adjust

    def __call__(
        self, x: torch.Tensor, residual: torch.Tensor, step: FeedStep
    ) -> torch.Tensor:  # [n, hidden]
        out = self._feed(x, torch.zeros_like(residual), step)
        return residual.add_(self._adjust(out))
