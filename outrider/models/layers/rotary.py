"""Rotary position embedding: the angles of a step, computed once, and turning heads by them."""

import math
from dataclasses import dataclass

import torch

from outrider.models.model_config import RopeConfig
from outrider.models.rope_scaling import LinearScaling, Llama3Scaling, RopeScaling, YarnScaling


@dataclass(frozen=True, slots=True)
class Rotation:
    """How far to turn each query token. The first half of `sin` is negated for `rotate_`."""

    cos: torch.Tensor  # [num_query, 1, head_dim]
    sin: torch.Tensor  # [num_query, 1, head_dim]


class RotaryEmbedding:
    """Owns the frequencies. Angles follow from positions, so there is no table to outgrow."""

    def __init__(
        self, config: RopeConfig, *, head_dim: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        rotated = config.num_rotated(head_dim)
        # The pairs of lanes that are not rotated have frequency zero, and come last.
        idle = torch.zeros((head_dim - rotated) // 2)
        frequencies = torch.cat([scaled_frequencies(config, rotated), idle])  # [head_dim / 2]
        scale = attention_factor(config.scaling)
        self._frequencies = frequencies.repeat(2).to(device)  # [head_dim]
        signs = torch.tensor([-scale, scale]).repeat_interleave(head_dim // 2)
        self._signs = signs.to(device)  # [head_dim]
        self._scale = scale
        self._dtype = dtype

    def at(self, positions: torch.Tensor) -> Rotation:  # positions [num_query]
        """The rotation of every query token of a step."""
        if positions.is_cuda:
            from outrider.ops.norm_rope.rotary_triton import angles_at

            half = self._frequencies[: self._frequencies.shape[0] // 2]
            return Rotation(*angles_at(positions, half, self._scale, self._dtype))
        angles = positions[:, None, None] * self._frequencies  # [num_query, 1, head_dim]
        cos = angles.cos() * self._scale
        sin = angles.sin() * self._signs
        return Rotation(cos.to(self._dtype), sin.to(self._dtype))


def rotate_(heads: torch.Tensor, rotation: Rotation) -> None:  # heads [num_query, heads, head_dim]
    """Turn each pair (i, i + head_dim / 2) of every head, in place."""
    swapped = heads.roll(heads.shape[-1] // 2, dims=-1)
    heads.mul_(rotation.cos).addcmul_(swapped, rotation.sin)


def scaled_frequencies(config: RopeConfig, head_dim: int) -> torch.Tensor:  # [head_dim / 2] float32
    """Radians per position of every pair of dimensions."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    frequencies = 1.0 / config.theta**exponents
    match config.scaling:
        case LinearScaling(factor=factor):
            return frequencies / factor
        case Llama3Scaling() as scaling:
            turns = scaling.original_context * frequencies / (2 * math.pi)
            share = (turns - scaling.low_freq_factor) / (
                scaling.high_freq_factor - scaling.low_freq_factor
            )
            return _blend(frequencies, scaling.factor, kept=share.clamp(0.0, 1.0))
        case YarnScaling() as scaling:
            return _blend(frequencies, scaling.factor, kept=_yarn_share(scaling, config, head_dim))
        case _:
            return frequencies


def attention_factor(scaling: RopeScaling) -> float:
    """What the lengths of rotated queries and keys are multiplied by."""
    return scaling.attention_factor if isinstance(scaling, YarnScaling) else 1.0


def _blend(frequencies: torch.Tensor, factor: float, *, kept: torch.Tensor) -> torch.Tensor:
    """Frequencies of which a share is kept as trained and the rest divided by the factor."""
    return frequencies * (kept + (1.0 - kept) / factor)


def _yarn_share(scaling: YarnScaling, config: RopeConfig, head_dim: int) -> torch.Tensor:
    """How much of each frequency is kept: a ramp over dimensions, from fast ones to slow ones."""

    def dimension(turns: float) -> float:  # which pair turns that often in the original context
        wavelength = scaling.original_context / (2 * math.pi * turns)
        return head_dim * math.log(wavelength) / (2 * math.log(config.theta))

    first = max(math.floor(dimension(scaling.beta_fast)), 0)
    last = min(math.ceil(dimension(scaling.beta_slow)), head_dim - 1)
    pairs = torch.arange(head_dim // 2, dtype=torch.float32)
    return 1.0 - ((pairs - first) / max(last - first, 0.001)).clamp(0.0, 1.0)
