"""The rotation of vectors at their positions."""

import torch

from outrider.models.layers.rotary_embedding import attention_factor, scaled_frequencies
from outrider.models.rope_config import RopeConfig
from outrider.ops.norm_rope.partial_rope import TailRotation


class TailRotary:
    """Owns the frequencies."""

    def __init__(self, config: RopeConfig, *, rope_dim: int, device: torch.device) -> None:
        self._frequencies = scaled_frequencies(config, rope_dim).to(device)  # [pairs]
        self._scale = attention_factor(config.scaling)

    def at(self, positions: torch.Tensor) -> TailRotation:  # [n] int64
        """The rotation at every position."""
        angles = positions[:, None] * self._frequencies
        return TailRotation(angles.cos() * self._scale, angles.sin() * self._scale)
