"""Turning the last lanes of vectors by their position: neighbouring lanes are a pair."""

from dataclasses import dataclass

import torch

from outrider.models.config import RopeConfig
from outrider.models.layers.rope import attention_factor, scaled_frequencies


@dataclass(frozen=True, slots=True)
class TailRotation:
    """How far to turn each pair of lanes of every vector."""

    cos: torch.Tensor  # [n, pairs] float32
    sin: torch.Tensor  # [n, pairs] float32

    @property
    def back(self) -> "TailRotation":
        """The same angles the other way round."""
        return TailRotation(self.cos, -self.sin)


class TailRotary:
    """Owns the frequencies."""

    def __init__(self, config: RopeConfig, *, rope_dim: int, device: torch.device) -> None:
        self._frequencies = scaled_frequencies(config, rope_dim).to(device)  # [pairs]
        self._scale = attention_factor(config.scaling)

    def at(self, positions: torch.Tensor) -> TailRotation:  # [n] int64
        """The rotation at every position."""
        angles = positions[:, None] * self._frequencies
        return TailRotation(angles.cos() * self._scale, angles.sin() * self._scale)


def rotate_tail(
    x: torch.Tensor,  # [n, heads, width]
    rotation: TailRotation,
) -> torch.Tensor:  # [n, heads, width]
    """Turn the last lanes of every vector; the others stay."""
    num = 2 * rotation.cos.shape[1]
    cos, sin = rotation.cos[:, None], rotation.sin[:, None]  # [n, 1, pairs]
    even, odd = x[..., -num::2].float(), x[..., 1 - num :: 2].float()
    turned = torch.stack([even * cos - odd * sin, odd * cos + even * sin], dim=-1).flatten(-2)
    return torch.cat([x[..., :-num], turned.to(x.dtype)], dim=-1)
