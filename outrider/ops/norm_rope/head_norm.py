"""Norms of single heads: what happens to queries and keys before they are rotated."""

from typing import Protocol

import torch

from outrider.ops.norm_rope.rms_norm import Norm


class HeadNorm(Protocol):
    """Normalises queries and keys before rotation."""

    weight: torch.Tensor  # [heads + kv_heads, head_dim]; no rows where nothing is normalised
    eps: float

    def apply_(self, heads: torch.Tensor) -> None: ...  # [num_query, heads + kv_heads, head_dim]


class NormEachHead:
    """Normalises queries and keys per head, in place. The norm's weight is [heads, head_dim]."""

    def __init__(self, norm: Norm) -> None:
        self.weight = norm.weight
        self.eps = norm.eps
        self._norm = norm

    def apply_(self, heads: torch.Tensor) -> None:
        heads.copy_(self._norm(heads))


class NoHeadNorm:
    """No norm: leaves queries and keys as they are."""

    def __init__(self) -> None:
        self.weight = torch.empty((0, 0), device="cpu")
        self.eps = 0.0

    def apply_(self, heads: torch.Tensor) -> None:
        pass
