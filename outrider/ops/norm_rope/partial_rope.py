"""Turning the last lanes of vectors by their position, and norms that go before: neighbouring
lanes are a pair. In plain torch; on a GPU in one launch.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F


@dataclass(frozen=True, slots=True)
class TailRotation:
    """How far to turn each pair of lanes of every vector."""

    cos: torch.Tensor  # [n, pairs] float32
    sin: torch.Tensor  # [n, pairs] float32


@dataclass(frozen=True, slots=True)
class VectorNorm:
    """What a vector is scaled by: to unit root mean square, then each lane by its weight."""

    weight: torch.Tensor  # [width]; of no lanes where all are one
    eps: float


def rotate_tail(
    x: torch.Tensor,  # [n, heads, width], lanes side by side
    rotation: TailRotation,
    *,
    back: bool = False,
) -> torch.Tensor:  # [n, heads, width]
    """Turn the last lanes of every vector, or turn them back; the others stay."""
    if x.is_cuda:
        from outrider.ops.norm_rope.partial_rope_triton import (
            turn,  # a CPU installation has no Triton
        )

        return turn(x, rotation.cos, rotation.sin, is_back=back)
    return _rotate(x, rotation, back=back)


def norm_and_rotate(
    x: torch.Tensor,  # [n, heads, width], lanes side by side
    norm: VectorNorm,
    rotation: TailRotation,
) -> torch.Tensor:  # [n, heads, width]
    """The vectors normalised, then turned."""
    if x.is_cuda:
        from outrider.ops.norm_rope.partial_rope_triton import turn_normed

        return turn_normed(x, rotation.cos, rotation.sin, norm.weight, norm.eps)
    unit = F.rms_norm(x.float(), x.shape[-1:], eps=norm.eps)
    scaled = unit * norm.weight if norm.weight.numel() else unit
    return _rotate(scaled.to(x.dtype), rotation, back=False)


def _rotate(x: torch.Tensor, rotation: TailRotation, *, back: bool) -> torch.Tensor:
    num = 2 * rotation.cos.shape[1]
    cos, sin = rotation.cos[:, None], rotation.sin[:, None]  # [n, 1, pairs]
    sin = -sin if back else sin
    even, odd = x[..., -num::2].float(), x[..., 1 - num :: 2].float()
    turned = torch.stack([even * cos - odd * sin, odd * cos + even * sin], dim=-1).flatten(-2)
    return torch.cat([x[..., :-num], turned.to(x.dtype)], dim=-1)
