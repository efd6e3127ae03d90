"""From the bytes of pixels to the numbers that a vision tower was trained on."""

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class PixelScaling:
    """Numbers are (byte * factor - mean) / std, with one mean and std per colour."""

    factor: float
    mean: torch.Tensor  # [3] float32
    std: torch.Tensor  # [3] float32

    def of(self, pixels: torch.Tensor) -> torch.Tensor:  # [3, ...] uint8 -> [3, ...] float32
        shape = (-1, *[1] * (pixels.ndim - 1))
        return (pixels.float() * self.factor - self.mean.view(shape)) / self.std.view(shape)


def scaling_of(processor: Any, device: torch.device) -> PixelScaling:
    """As the image processor of transformers would scale, from the model's own files."""
    return PixelScaling(
        factor=float(processor.rescale_factor) if processor.do_rescale else 1.0,
        mean=_colours(processor.image_mean if processor.do_normalize else (0.0,) * 3, device),
        std=_colours(processor.image_std if processor.do_normalize else (1.0,) * 3, device),
    )


def _colours(values: Any, device: torch.device) -> torch.Tensor:  # [3] float32
    return torch.tensor([float(each) for each in values], device=device)
