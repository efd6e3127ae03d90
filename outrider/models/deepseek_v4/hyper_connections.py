"""Hyper-connections: a token has several residual streams. A part of a layer reads a mixture of
them and adds to each, while they are mixed among themselves by weights that neither grow nor fade.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from outrider.models.deepseek_v4.v4_config import StreamsConfig
from outrider.ops.norm_rope.rms_norm import Norm


@dataclass(frozen=True, slots=True, kw_only=True)
class MixWeights:
    """From the streams of a token to the weights of their mixture."""

    projection: torch.Tensor  # [mixes, streams * hidden] float32
    base: torch.Tensor  # [mixes] float32
    scale: torch.Tensor  # [mixes] float32
    norm_eps: float


@dataclass(frozen=True, slots=True)
class Mixed:
    """What a part reads, and how what it makes of that goes back."""

    x: torch.Tensor  # [n, hidden] normalised
    post: torch.Tensor  # [n, streams] float32 how much of the part's result each stream gets
    comb: torch.Tensor  # [n, streams, streams] float32 from each stream (first axis) to each


class Connection:
    """Owns the maps of one part of a layer. Its mixes are: in, out, and from stream to stream."""

    def __init__(self, config: StreamsConfig, weights: MixWeights, norm: Norm) -> None:
        self._config = config
        self._weights = weights
        self._norm = norm

    def read(self, streams: torch.Tensor) -> Mixed:  # [n, streams, hidden]
        num, eps, rounds = self._config.num, self._config.eps, self._config.rounds
        if _is_fused(streams):
            return Mixed(*_read(streams, self._weights, self._norm, eps=eps, rounds=rounds))
        mixes = mix_logits(streams, self._weights)  # [n, mixes]
        pre, post, comb = torch.split(mixes, [num, num, num * num], dim=1)
        comb = balance(comb.view(-1, num, num), rounds=rounds, eps=eps)
        x = self._norm(collapse(streams, pre.sigmoid() + eps))
        return Mixed(x, 2 * post.sigmoid(), comb)

    def write(
        self,
        y: torch.Tensor,  # [n, hidden] what the part made
        streams: torch.Tensor,  # [n, streams, hidden]
        mixed: Mixed,
    ) -> torch.Tensor:  # [n, streams, hidden]
        if _is_fused(streams):
            from outrider.ops.linear.hyper_connections_triton import (
                write_streams,  # a CPU has no Triton
            )

            return write_streams(y, streams, mixed.post, mixed.comb)
        kind = streams.dtype
        kept = torch.matmul(mixed.comb.to(kind).transpose(1, 2), streams)
        return torch.addcmul(kept, mixed.post.to(kind)[:, :, None], y[:, None])


class Collapse:
    """Owns the map that makes one stream of all, after the last layer."""

    def __init__(self, config: StreamsConfig, weights: MixWeights, norm: Norm) -> None:
        self._config = config
        self._weights = weights
        self._norm = norm

    def __call__(self, streams: torch.Tensor) -> torch.Tensor:  # [n, hidden] normalised
        eps = self._config.eps
        if _is_fused(streams):
            return _read(streams, self._weights, self._norm, eps=eps, rounds=0)[0]
        mixes = mix_logits(streams, self._weights)
        return self._norm(collapse(streams, mixes.sigmoid() + eps))


def _is_fused(streams: torch.Tensor) -> bool:
    """A tile holds a power of two of streams."""
    return streams.is_cuda and streams.shape[1].bit_count() == 1


def _read(
    streams: torch.Tensor, weights: MixWeights, norm: Norm, *, eps: float, rounds: int
) -> tuple[torch.Tensor, ...]:
    from outrider.ops.linear.hyper_connections_triton import read_streams

    mixes = weights.projection, weights.base, weights.scale
    return read_streams(
        streams,
        mixes,
        (norm.weight, norm.eps),
        mix_eps=weights.norm_eps,
        eps=eps,
        rounds=rounds,
    )


def mix_logits(streams: torch.Tensor, weights: MixWeights) -> torch.Tensor:  # [n, mixes] float32
    """The raw weights of every token, from its streams as one normalised vector."""
    flat = streams.flatten(1).float()
    unit = flat * torch.rsqrt(flat.square().mean(1, keepdim=True) + weights.norm_eps)
    return torch.addcmul(weights.base, F.linear(unit, weights.projection), weights.scale)


def collapse(
    streams: torch.Tensor,  # [n, streams, hidden]
    shares: torch.Tensor,  # [n, streams] float32
) -> torch.Tensor:  # [n, hidden]
    """The weighted sum of a token's streams."""
    return (shares[:, :, None] * streams).sum(1).to(streams.dtype)


def balance(
    logits: torch.Tensor,  # [n, streams, streams]
    *,
    rounds: int,
    eps: float,
) -> torch.Tensor:  # [n, streams, streams]
    """Weights of which every row and every column sums to one, nearly: Sinkhorn and Knopp."""
    weights = logits.softmax(2) + eps
    weights = weights / (weights.sum(1, keepdim=True) + eps)
    for _ in range(rounds - 1):
        weights = weights / (weights.sum(2, keepdim=True) + eps)
        weights = weights / (weights.sum(1, keepdim=True) + eps)
    return weights
