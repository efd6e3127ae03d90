"""Hyper-connections: a token has several residual streams. A part of a layer reads a mixture of
them, and its result is added to each, while the streams are mixed by a doubly stochastic matrix.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from outrider.ops.fixed_activations import sigmoid
from outrider.ops.linear.fixed_product import fixed_product
from outrider.ops.norm_rope.rms_norm import Norm


@dataclass(frozen=True, slots=True, kw_only=True)
class MixWeights:
    """Weights of the mixture: from a token's streams to its mixing coefficients."""

    projection: torch.Tensor  # [mixes, streams * hidden] float32
    base: torch.Tensor  # [mixes] float32
    scale: torch.Tensor  # [mixes] float32
    norm_eps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedStreams:
    """What a part of a layer reads, and how its result goes back to the streams."""

    x: torch.Tensor  # [n, hidden] normalised
    post: torch.Tensor  # [n, streams] float32 share of the part's result that each stream gets
    comb: torch.Tensor  # [n, streams, streams] float32 from each stream (first axis) to each


def read_streams(
    streams: torch.Tensor,  # [n, streams, hidden]
    weights: MixWeights,  # mixes: in, out, and from stream to stream
    norm: Norm,
    *,
    eps: float,
    rounds: int,
) -> MixedStreams:
    """The mixture that a part of a layer reads."""
    if _is_fused(streams):
        from outrider.ops.linear.hyper_connections_triton import read_streams_triton

        return read_streams_triton(streams, weights, norm, eps=eps, rounds=rounds)
    return read_streams_reference(streams, weights, norm, eps=eps, rounds=rounds)


def read_streams_reference(
    streams: torch.Tensor, weights: MixWeights, norm: Norm, *, eps: float, rounds: int
) -> MixedStreams:
    """The same in torch."""
    num = streams.shape[1]
    mixes = _mix_logits(streams, weights)  # [n, mixes]
    pre, post, comb = torch.split(mixes, [num, num, num * num], dim=1)
    comb = _balance(comb.view(-1, num, num), rounds=rounds, eps=eps)
    x = norm(_weighted_sum(streams, sigmoid(pre) + eps))
    return MixedStreams(x=x, post=2 * sigmoid(post), comb=comb)


def write_streams(
    y: torch.Tensor,  # [n, hidden] the part's result
    streams: torch.Tensor,  # [n, streams, hidden]
    mixed: MixedStreams,
) -> torch.Tensor:  # [n, streams, hidden]
    """The streams after a part of a layer."""
    if _is_fused(streams):
        from outrider.ops.linear.hyper_connections_triton import write_streams_triton

        return write_streams_triton(y, streams, mixed)
    return write_streams_reference(y, streams, mixed)


def write_streams_reference(
    y: torch.Tensor, streams: torch.Tensor, mixed: MixedStreams
) -> torch.Tensor:
    """The same in torch."""
    dtype = streams.dtype
    comb = mixed.comb.to(dtype).transpose(1, 2).contiguous()
    combined = fixed_product(comb, streams)
    return torch.addcmul(combined, mixed.post.to(dtype)[:, :, None], y[:, None])


def collapse_streams(
    streams: torch.Tensor,  # [n, streams, hidden]
    weights: MixWeights,  # one mix per stream
    norm: Norm,
    *,
    eps: float,
) -> torch.Tensor:  # [n, hidden] normalised
    """One stream made of all, after the last layer."""
    if _is_fused(streams):
        from outrider.ops.linear.hyper_connections_triton import read_streams_triton

        return read_streams_triton(streams, weights, norm, eps=eps, rounds=0).x
    return collapse_streams_reference(streams, weights, norm, eps=eps)


def collapse_streams_reference(
    streams: torch.Tensor, weights: MixWeights, norm: Norm, *, eps: float
) -> torch.Tensor:
    """The same in torch."""
    return norm(mix_streams(streams, weights, eps=eps))


def mix_streams(
    streams: torch.Tensor, weights: MixWeights, *, eps: float
) -> torch.Tensor:  # [n, streams, hidden] -> [n, hidden]
    """One stream made of all, not normalised. In torch on every device: only drafters need it."""
    return _weighted_sum(streams, sigmoid(_mix_logits(streams, weights)) + eps)


def _is_fused(streams: torch.Tensor) -> bool:
    """The kernels need a power of two of streams, which are one axis of a tile."""
    return streams.is_cuda and streams.shape[1].bit_count() == 1


def _mix_logits(streams: torch.Tensor, weights: MixWeights) -> torch.Tensor:  # [n, mixes] float32
    """The raw coefficients of every token, from its streams as one normalised vector."""
    flat = streams.flatten(1).float()
    unit = flat * torch.rsqrt(_mean_square(flat) + weights.norm_eps)
    return torch.addcmul(weights.base, _project(unit, weights.projection), weights.scale)


def _project(
    unit: torch.Tensor,  # [n, streams * hidden] float32
    projection: torch.Tensor,  # [mixes, streams * hidden] float32
) -> torch.Tensor:  # [n, mixes]
    if unit.device.type == "cpu":
        return fixed_product(unit[None], projection.t()[None]).squeeze(0)
    return F.linear(unit, projection)


def _mean_square(rows: torch.Tensor) -> torch.Tensor:  # [n, width] -> [n, 1]
    """On a CPU of two rows at least: threads would divide the sum of a single one."""
    squares = rows.square()
    if squares.device.type == "cpu" and len(rows) == 1:
        squares = F.pad(squares, (0, 0, 0, 1))
    return squares.mean(1, keepdim=True)[: len(rows)]


def _weighted_sum(
    streams: torch.Tensor,  # [n, streams, hidden]
    shares: torch.Tensor,  # [n, streams] float32
) -> torch.Tensor:  # [n, hidden]
    return (shares[:, :, None] * streams).sum(1).to(streams.dtype)


def _balance(
    logits: torch.Tensor,  # [n, streams, streams]
    *,
    rounds: int,
    eps: float,
) -> torch.Tensor:  # [n, streams, streams]
    """Weights whose rows and columns nearly sum to one, by Sinkhorn-Knopp."""
    weights = logits.softmax(2) + eps
    weights = weights / (weights.sum(1, keepdim=True) + eps)
    for _ in range(rounds - 1):
        weights = weights / (weights.sum(2, keepdim=True) + eps)
        weights = weights / (weights.sum(1, keepdim=True) + eps)
    return weights
