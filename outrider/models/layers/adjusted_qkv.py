"""Projections of queries, keys and values whose output is normalised or clamped at once."""

from typing import Protocol

import torch

from outrider.distributed.rank_group import RankGroup
from outrider.ops.linear.linear import Linear
from outrider.ops.norm_rope.rms_norm import Norm
from outrider.ops.norm_rope.shared_norm import scale_by_squares, square_sums

Pair = tuple[torch.Tensor, torch.Tensor]  # [n, channels] of queries, and of keys


class QueryKeyNorm(Protocol):
    """Normalises queries and keys, with all heads side by side."""

    sizes: tuple[int, int]  # channels of queries and of keys

    def __call__(self, query: torch.Tensor, key: torch.Tensor) -> Pair: ...  # [n, channels] both


class NormedHeadsLinear:
    """The fused projection of queries, keys and values. The first two are normalised."""

    def __init__(self, linear: Linear, norm: QueryKeyNorm) -> None:
        self._linear = linear
        self._norm = norm
        self.min_rows = linear.min_rows

    def __call__(self, x: torch.Tensor) -> torch.Tensor:  # [n, in] -> [n, out]
        query, key = self._norm.sizes
        parts = torch.split(self._linear(x), [query, key, key], dim=1)
        normed = self._norm(parts[0].contiguous(), parts[1].contiguous())
        return torch.cat([*normed, parts[2]], dim=1)

    def plus(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return residual + self(x)


class JointNorm:
    """Over all heads at once, not head by head."""

    def __init__(self, query_norm: Norm, key_norm: Norm) -> None:  # weights [channels]
        self._query_norm = query_norm
        self._key_norm = key_norm
        self.sizes = query_norm.weight.shape[0], key_norm.weight.shape[0]

    def __call__(self, query: torch.Tensor, key: torch.Tensor) -> Pair:
        return self._query_norm(query), self._key_norm(key)


class SharedJointNorm:
    """The same of heads that several ranks share: one sum over ranks for both norms."""

    def __init__(
        self,
        query_norm: Norm,  # weights [channels] of this rank
        key_norm: Norm,
        *,
        ranks: RankGroup,
        of_all: tuple[int, int],  # channels of queries and of keys, of all ranks together
    ) -> None:
        self._norms = query_norm, key_norm
        self._ranks = ranks
        self._of_all = of_all
        self.sizes = query_norm.weight.shape[0], key_norm.weight.shape[0]
        # With fewer key-value heads than ranks, several ranks have the same one.
        self._copies = max(self.sizes[1] * ranks.size // of_all[1], 1)

    def __call__(self, query: torch.Tensor, key: torch.Tensor) -> Pair:
        sums = torch.stack([square_sums(query), square_sums(key)], dim=1)  # [n, 2]
        self._ranks.add_up_(sums)
        sums[:, 1] /= self._copies
        return self._scaled(query, sums, 0), self._scaled(key, sums, 1)

    def _scaled(self, part: torch.Tensor, sums: torch.Tensor, index: int) -> torch.Tensor:
        norm, num_channels = self._norms[index], self._of_all[index]
        return scale_by_squares(
            part, norm.weight, sums[:, index], num_channels=num_channels, eps=norm.eps
        )


class EachHeadNorm:
    """Head by head, each with weights of its own. For norms that are not RMS norms."""

    def __init__(self, query_norm: Norm, key_norm: Norm) -> None:  # weights [heads, head_dim]
        self._query_norm = query_norm
        self._key_norm = key_norm
        self.sizes = query_norm.weight.numel(), key_norm.weight.numel()

    def __call__(self, query: torch.Tensor, key: torch.Tensor) -> Pair:
        return _of_heads(query, self._query_norm), _of_heads(key, self._key_norm)


def _of_heads(part: torch.Tensor, norm: Norm) -> torch.Tensor:  # [n, channels] both
    return norm(part.view(-1, *norm.weight.shape)).flatten(1)


class ClampedLinear:
    """The output is clamped to a range around zero."""

    def __init__(self, linear: Linear, limit: float) -> None:
        self._linear = linear
        self._limit = limit
        self.min_rows = linear.min_rows

    def __call__(self, x: torch.Tensor) -> torch.Tensor:  # [n, in] -> [n, out]
        return self._linear(x).clamp(-self._limit, self._limit)

    def plus(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return residual + self(x)
