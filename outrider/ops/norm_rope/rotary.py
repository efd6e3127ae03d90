"""Rotary position embedding: the angles of a step, and the rotation of heads with the KV write."""

from dataclasses import dataclass

import torch

from outrider.ops.attention.write_kv import write_kv
from outrider.ops.compiled.why_not_compiled import why_not_compiled
from outrider.ops.norm_rope.head_norm import HeadNorm


@dataclass(frozen=True, slots=True, kw_only=True)
class RotaryFrequencies:
    """The frequencies of cosines and sines, and the type that these are stored in.

    A channel of frequency 0 is not rotated, and so not scaled either.
    """

    radians: torch.Tensor  # [head_dim] float32 per position; both halves are equal
    signs: torch.Tensor  # [head_dim] float32: -scale in the first half, scale in the second
    scale: float  # of cosines and sines
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Rotation:
    """The angles of every query token. The first half of `sin` is negated for `rotate_`."""

    cos: torch.Tensor  # [num_query, 1, head_dim] contiguous
    sin: torch.Tensor  # [num_query, 1, head_dim] contiguous


def rotation_at(
    positions: torch.Tensor,  # [num_query] int64
    frequencies: RotaryFrequencies,
) -> Rotation:
    """Scaled cosines and sines of every position."""
    if positions.is_cuda:
        from outrider.ops.norm_rope.rotary_triton import rotation_at_triton

        return rotation_at_triton(positions, frequencies)
    if is_rotation_compiled(frequencies):
        from outrider.ops.norm_rope.rotary_compiled import rotation_at_compiled

        return rotation_at_compiled(positions, frequencies)
    return rotation_at_reference(positions, frequencies)


def is_rotation_compiled(frequencies: RotaryFrequencies) -> bool:
    """Whether angles are computed by compiled functions, on a CPU."""
    if frequencies.dtype != torch.float32 or frequencies.radians.device.type != "cpu":
        return False
    return not why_not_compiled("outrider.ops.compiled.rotation_rows")


def rotation_at_reference(positions: torch.Tensor, frequencies: RotaryFrequencies) -> Rotation:
    angles = positions[:, None, None] * frequencies.radians  # [num_query, 1, head_dim]
    cos = angles.cos()
    if frequencies.scale != 1.0:
        cos = torch.where(frequencies.radians == 0, cos, cos * frequencies.scale)
    sin = angles.sin() * frequencies.signs
    return Rotation(cos.to(frequencies.dtype), sin.to(frequencies.dtype))


def rotate_(heads: torch.Tensor, rotation: Rotation) -> None:  # heads [num_query, heads, head_dim]
    """Rotate each pair (i, i + head_dim / 2) of every head, in place."""
    swapped = heads.roll(heads.shape[-1] // 2, dims=-1)
    heads.mul_(rotation.cos).addcmul_(swapped, rotation.sin)


def rotate_and_store(
    heads: torch.Tensor,  # [num_query, heads + 2 * kv_heads, head_dim] queries, keys, values
    rotation: Rotation,
    norm: HeadNorm,
    layer: torch.Tensor,  # [pages, page_size, 2 * kv_heads, head_dim]
    slots: torch.Tensor,  # [num_query] int64
) -> None:
    """Normalise and rotate queries in place; write keys, likewise rotated, and values to slots.

    The keys that remain in `heads` are undefined: attention reads keys from the pool.
    """
    if heads.is_cuda:
        from outrider.ops.norm_rope.rotary_triton import rotate_and_store_triton

        rotate_and_store_triton(heads, rotation, norm, layer, slots)
    else:
        rotate_and_store_reference(heads, rotation, norm, layer, slots)


def rotate_and_store_reference(
    heads: torch.Tensor,
    rotation: Rotation,
    norm: HeadNorm,
    layer: torch.Tensor,
    slots: torch.Tensor,
) -> None:
    # Rotating in place leaves keys and values side by side, as the pool stores them.
    num_kv = layer.shape[2]
    rotated = heads[:, : heads.shape[1] - num_kv // 2]
    norm.apply_(rotated)
    rotate_(rotated, rotation)
    write_kv(layer, slots, heads[:, -num_kv:])
