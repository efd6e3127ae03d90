"""Rotation of the last channels of vectors by their position, and the norm before it.

Neighbouring channels are a pair.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F


@dataclass(frozen=True, slots=True)
class TailRotation:
    """The angle of each rotated pair of channels of every vector."""

    cos: torch.Tensor  # [n, pairs] float32
    sin: torch.Tensor  # [n, pairs] float32


@dataclass(frozen=True, slots=True)
class VectorNorm:
    """Scales a vector to unit root mean square, then each channel by its weight."""

    weight: torch.Tensor  # [width]; [0] where all weights are one
    eps: float


def rotate_tail(
    x: torch.Tensor,  # [n, heads, width], unit stride along width
    rotation: TailRotation,
    *,
    back: bool = False,
) -> torch.Tensor:  # [n, heads, width]
    """The last channels of every vector rotated, or rotated back; the others as they are."""
    if x.is_cuda:
        from outrider.ops.norm_rope.partial_rope_triton import rotate_tail_triton

        return rotate_tail_triton(x, rotation, back=back)
    return rotate_tail_reference(x, rotation, back=back)


def rotate_tail_reference(
    x: torch.Tensor, rotation: TailRotation, *, back: bool = False
) -> torch.Tensor:
    num = 2 * rotation.cos.shape[1]
    cos, sin = rotation.cos[:, None], rotation.sin[:, None]  # [n, 1, pairs]
    sin = -sin if back else sin
    even, odd = x[..., -num::2].float(), x[..., 1 - num :: 2].float()
    rotated = torch.stack([even * cos - odd * sin, odd * cos + even * sin], dim=-1).flatten(-2)
    return torch.cat([x[..., :-num], rotated.to(x.dtype)], dim=-1)


def norm_and_rotate(
    x: torch.Tensor,  # [n, heads, width], unit stride along width
    norm: VectorNorm,
    rotation: TailRotation,
) -> torch.Tensor:  # [n, heads, width]
    """The vectors normalised, then their last channels rotated."""
    if x.is_cuda:
        from outrider.ops.norm_rope.partial_rope_triton import norm_and_rotate_triton

        return norm_and_rotate_triton(x, norm, rotation)
    return norm_and_rotate_reference(x, norm, rotation)


def norm_and_rotate_reference(
    x: torch.Tensor, norm: VectorNorm, rotation: TailRotation
) -> torch.Tensor:
    unit = F.rms_norm(x.float(), x.shape[-1:], eps=norm.eps)
    scaled = unit * norm.weight if norm.weight.numel() else unit
    return rotate_tail_reference(scaled.to(x.dtype), rotation)
