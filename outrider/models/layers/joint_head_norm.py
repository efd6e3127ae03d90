"""Queries and keys that are normalised over all heads at once, not head by head."""

import torch

from outrider.ops.linear.linear import Linear
from outrider.ops.norm_rope.rms_norm import Norm


class JointNormedLinear:
    """The fused projection of queries, keys and values. The first two are normalised."""

    def __init__(self, linear: Linear, query_norm: Norm, key_norm: Norm) -> None:
        self._linear = linear
        self._query_norm = query_norm
        self._key_norm = key_norm
        self.min_rows = linear.min_rows

    def __call__(self, x: torch.Tensor) -> torch.Tensor:  # [n, in] -> [n, out]
        query, key = self._query_norm.weight.shape[0], self._key_norm.weight.shape[0]
        parts = torch.split(self._linear(x), [query, key, key], dim=1)
        normed = self._query_norm(parts[0].contiguous()), self._key_norm(parts[1].contiguous())
        return torch.cat([*normed, parts[2]], dim=1)

    def plus(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return residual + self(x)
