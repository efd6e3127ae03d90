"""Layers of which every rank computes a share. Their outputs are added up over all ranks."""

from dataclasses import dataclass
from typing import Any

import torch

from outrider.distributed.rank_group import RankGroup
from outrider.models.layers.attention_layer import Attention, AttentionStep
from outrider.models.layers.mlp import FeedForward, FeedStep
from outrider.ops.linear.linear import Linear


class ReducedAttention:
    """Some of the heads. Rank 0 adds the residual, so that one sum contains it."""

    def __init__(self, share: Attention, ranks: RankGroup) -> None:
        self._share = share
        self._ranks = ranks

    def __call__(
        self, x: torch.Tensor, residual: torch.Tensor, layer: Any, step: AttentionStep
    ) -> torch.Tensor:  # [n, hidden]
        out = self._share(x, _residual_of(self._ranks, residual), layer, step)
        self._ranks.add_up_(out)
        return out

    def write_kv(self, x: torch.Tensor, layer: Any, step: AttentionStep) -> None:
        self._share.write_kv(x, layer, step)  # each rank stores its own heads


class ReducedFeed:
    """Some of the channels of an MLP, or of every expert."""

    def __init__(self, share: FeedForward, ranks: RankGroup) -> None:
        self._share = share
        self._ranks = ranks

    def __call__(
        self, x: torch.Tensor, residual: torch.Tensor, step: FeedStep
    ) -> torch.Tensor:  # [n, hidden]
        out = self._share(x, _residual_of(self._ranks, residual), step)
        self._ranks.add_up_(out)
        return out


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnLogits:
    """Logits of the tokens that one rank scores, or of all tokens."""

    scores: torch.Tensor  # [n, own]
    first: int  # token of the first column


class JoinedHead:
    """The logits of some of the tokens, joined with those of the other ranks.

    Each token is scored by one rank. All ranks have the same number of rows; those past the
    vocabulary are cut off.
    """

    def __init__(
        self,
        share: Linear,
        ranks: RankGroup,
        *,
        vocab_size: int,
        own: range,  # tokens that this rank scores
    ) -> None:
        self.min_rows = share.min_rows
        self._share = share
        self._ranks = ranks
        self._vocab_size = vocab_size
        self._own = own

    def __call__(self, x: torch.Tensor) -> torch.Tensor:  # [n, hidden] -> [n, vocab]
        return self._ranks.join(self._share(x))[:, : self._vocab_size].contiguous()

    def plus(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return residual + self(x)

    def own_logits(self, x: torch.Tensor) -> OwnLogits:
        return OwnLogits(scores=self._share(x)[:, : len(self._own)], first=self._own.start)


def own_logits(head: Linear, x: torch.Tensor) -> OwnLogits:  # [n, hidden]
    """The logits that this rank computes itself."""
    if isinstance(head, JoinedHead):
        return head.own_logits(x)
    return OwnLogits(scores=head(x), first=0)


def _residual_of(ranks: RankGroup, residual: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(residual) if ranks.rank else residual
