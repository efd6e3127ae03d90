"""Rotary position embedding: the frequencies of a model. Angles are computed once per step."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F

from outrider.models.rope_config import RopeConfig
from outrider.models.rope_scaling import (
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    RopeScaling,
    YarnScaling,
)
from outrider.ops.norm_rope.rotary import RotaryFrequencies, Rotation, rotation_at


class RotaryEmbedding:
    """Owns the frequencies. Angles are computed from positions, so no table limits the context."""

    def __init__(
        self, config: RopeConfig, *, head_dim: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        rotated = config.num_rotated(head_dim)
        # The pairs of channels that are not rotated have frequency zero, and come last.
        idle = torch.zeros((head_dim - rotated) // 2)
        frequencies = torch.cat([scaled_frequencies(config, rotated), idle])  # [head_dim / 2]
        scale = attention_factor(config.scaling)
        signs = torch.tensor([-scale, scale]).repeat_interleave(head_dim // 2)
        self.frequencies = RotaryFrequencies(
            radians=frequencies.repeat(2).to(device),
            signs=signs.to(device),
            scale=scale,
            dtype=dtype,
        )

        self._axes = torch.empty(0, dtype=torch.int64)  # [head_dim] of each channel, if there are
        if config.sections:  # those of channels that are not rotated do not matter
            axes = F.pad(torch.tensor(config.axes(rotated // 2)), (0, (head_dim - rotated) // 2))
            self._axes = axes.repeat(2).to(device)

    def at(self, positions: torch.Tensor) -> Rotation:  # [num_query], or [3, num_query]
        """The rotation of every query token of a step.

        Positions of three axes are rotated as if each was a token; a channel takes its axis.
        """
        if positions.ndim == 1:
            return rotation_at(positions, self.frequencies)
        num_axes, num_query = positions.shape
        each = rotation_at(positions.flatten(), self.frequencies)
        index = self._axes.expand(1, num_query, 1, -1)
        cos, sin = (
            part.view(num_axes, num_query, 1, -1).gather(0, index)[0]
            for part in (each.cos, each.sin)
        )
        return Rotation(cos, sin)


def make_rotaries(
    ropes: Sequence[RopeConfig], *, head_dim: int, dtype: torch.dtype, device: torch.device
) -> tuple[RotaryEmbedding, ...]:
    """The rotary embeddings of a model, one for each rope that its layers have."""
    return tuple(
        RotaryEmbedding(rope, head_dim=head_dim, dtype=dtype, device=device) for rope in ropes
    )


def scaled_frequencies(config: RopeConfig, head_dim: int) -> torch.Tensor:  # [head_dim / 2] float32
    """Radians per position of every pair of dimensions."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    frequencies = 1.0 / config.theta**exponents
    match config.scaling:
        case LinearScaling(factor=factor):
            return frequencies / factor
        case Llama3Scaling() as scaling:
            periods = scaling.original_context * frequencies / (2 * math.pi)
            share = (periods - scaling.low_freq_factor) / (
                scaling.high_freq_factor - scaling.low_freq_factor
            )
            return _blend(frequencies, scaling.factor, unscaled=share.clamp(0.0, 1.0))
        case YarnScaling() as scaling:
            return _blend(
                frequencies, scaling.factor, unscaled=_yarn_share(scaling, config, head_dim)
            )
        case LongRopeScaling() as scaling:
            return 1.0 / (torch.tensor(scaling.factors) * config.theta**exponents)
        case _:
            return frequencies


def attention_factor(scaling: RopeScaling) -> float:
    """The factor by which rotated queries and keys are scaled."""
    if isinstance(scaling, YarnScaling | LongRopeScaling):
        return scaling.attention_factor
    return 1.0


def _blend(frequencies: torch.Tensor, factor: float, *, unscaled: torch.Tensor) -> torch.Tensor:
    """A share of each frequency stays as trained, and the rest is divided by the factor."""
    return frequencies * (unscaled + (1.0 - unscaled) / factor)


def _yarn_share(scaling: YarnScaling, config: RopeConfig, head_dim: int) -> torch.Tensor:
    """The share of each frequency that stays unscaled: a ramp from fast to slow dimensions."""

    def dimension(periods: float) -> float:  # the pair with so many periods in the original context
        wavelength = scaling.original_context / (2 * math.pi * periods)
        return head_dim * math.log(wavelength) / (2 * math.log(config.theta))

    fast, slow = dimension(scaling.beta_fast), dimension(scaling.beta_slow)
    if scaling.is_truncated:
        fast, slow = math.floor(fast), math.ceil(slow)
    first, last = max(fast, 0), min(slow, head_dim - 1)
    pairs = torch.arange(head_dim // 2, dtype=torch.float32)
    return 1.0 - ((pairs - first) / max(last - first, 0.001)).clamp(0.0, 1.0)
