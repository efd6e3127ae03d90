"""The vision tower of Qwen2.5-VL: patches in windows, merged two by two in each direction."""

import math
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import (
    Qwen2_5_VisionTransformerPretrainedModel,
)
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from outrider.errors import ConfigError
from outrider.models.vision.pixel_scaling import PixelScaling, scaling_of
from outrider.models.vision.tower_tensors import find_prefix, load_modules
from outrider.step.host_copy import pinned_for
from outrider.wire.image_span import ImagePixels

_PREFIXES = ("model.visual.", "visual.")  # of transformers 5, and as published


class Qwen2_5VLTower:
    """Owns the module of transformers. Images may have any size that the processor makes."""

    reads_images = True

    def __init__(
        self,
        tower: Any,  # a module of transformers
        scaling: PixelScaling,
        *,
        most_pixels: int,  # of an image after it was resized
        dtype: torch.dtype,
    ) -> None:
        self._tower = tower
        self._scaling = scaling
        self._most_pixels = most_pixels
        self._dtype = dtype

    @torch.inference_mode()
    def encode(self, pixels: ImagePixels) -> torch.Tensor:  # [tokens, hidden]
        host = torch.frombuffer(bytearray(pixels.values), dtype=torch.uint8).view(pixels.shape)
        device = self._scaling.mean.device
        return self._encode(pinned_for(device, host).to(device, non_blocking=True), pixels.grid)

    @torch.inference_mode()
    def dummy_run(self) -> None:
        config = self._tower.config
        merged = config.patch_size * config.spatial_merge_size  # pixels
        edge = max(math.isqrt(self._most_pixels) // merged, 1)
        shape = ((edge * config.spatial_merge_size) ** 2, 3, config.patch_size**2)
        device = self._scaling.mean.device
        self._encode(torch.zeros(shape, dtype=torch.uint8, device=device), (edge, edge))

    def _encode(
        self,
        patches: torch.Tensor,  # [patches, 3, pixels] uint8
        grid: tuple[int, int],
    ) -> torch.Tensor:  # [tokens, hidden]
        config = self._tower.config
        values = self._scaling.of(patches.transpose(0, 1)).transpose(0, 1)  # [patches, 3, pixels]
        # A patch has several frames of a video; an image is a video that stands still.
        frames = values[:, :, None].expand(-1, -1, config.temporal_patch_size, -1).flatten(1)
        size = [edge * config.spatial_merge_size for edge in grid]
        grids = torch.tensor([[1, *size]], device=patches.device)
        output = self._tower(frames.to(self._dtype), grid_thw=grids)
        embedded: torch.Tensor = output.pooler_output
        return embedded


def load_qwen2_5_vl(folder: Path, *, dtype: torch.dtype, device: torch.device) -> Qwen2_5VLTower:
    """The tower in a folder, whose tensors must match its config.json exactly."""
    config = AutoConfig.from_pretrained(folder, local_files_only=True).vision_config
    config._attn_implementation = "sdpa"
    processor = Qwen2VLImageProcessorPil.from_pretrained(folder, local_files_only=True)
    cut, read = (
        (processor.patch_size, processor.merge_size, processor.temporal_patch_size),
        (config.patch_size, config.spatial_merge_size, config.temporal_patch_size),
    )
    if cut != read:
        raise ConfigError(
            f"{folder}: preprocessor_config.json cuts patches of {cut} (pixels, merged, frames) "
            f"and the vision tower reads {read}; use the files of one model"
        )
    prefix = find_prefix(folder, _PREFIXES)
    modules = load_modules(
        folder,
        {prefix: lambda: Qwen2_5_VisionTransformerPretrainedModel(config)},
        dtype=dtype,
        device=device,
    )
    return Qwen2_5VLTower(
        modules[prefix],
        scaling_of(processor, device),
        most_pixels=int(processor.size["longest_edge"]),
        dtype=dtype,
    )
