"""Vision towers of Qwen2.5-VL, Qwen3-VL, Qwen3.5: patches, merged two by two in each direction."""

import math
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from outrider.errors import ConfigError
from outrider.hub.vision_config import VisionKind
from outrider.models.vision.pixel_scaling import PixelScaling, scaling_of
from outrider.models.vision.tower_tensors import find_prefix, load_modules
from outrider.step.host_copy import pinned_for
from outrider.wire.image_span import ImagePixels

_PREFIXES = ("model.visual.", "visual.")  # of transformers 5 and Qwen3-VL; Qwen2.5-VL as published


class QwenVLTower:
    """Owns the module of transformers. Images may have any size that the processor makes."""

    reads_images = True

    def __init__(
        self,
        tower: Any,  # a module of transformers
        scaling: PixelScaling,
        *,
        most_pixels: int,  # of an image after it was resized
        num_deepstack: int,
        dtype: torch.dtype,
    ) -> None:
        self.num_deepstack = num_deepstack
        self._tower = tower
        self._scaling = scaling
        self._most_pixels = most_pixels
        self._dtype = dtype

    @torch.inference_mode()
    def encode(self, pixels: ImagePixels) -> torch.Tensor:  # [tokens, (1 + deepstack) * hidden]
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
    ) -> torch.Tensor:  # [tokens, (1 + deepstack) * hidden]
        config = self._tower.config
        values = self._scaling.of(patches.transpose(0, 1)).transpose(0, 1)  # [patches, 3, pixels]
        # A patch has several frames of a video; an image is a video that stands still.
        frames = values[:, :, None].expand(-1, -1, config.temporal_patch_size, -1).flatten(1)
        size = [edge * config.spatial_merge_size for edge in grid]
        grids = torch.tensor([[1, *size]], device=patches.device)
        output = self._tower(frames.to(self._dtype), grid_thw=grids)
        if not self.num_deepstack:
            embedded: torch.Tensor = output.pooler_output
            return embedded
        return torch.cat([output.pooler_output, *output.deepstack_features], 1)


def load_qwen_vl(
    folder: Path, kind: VisionKind, *, dtype: torch.dtype, device: torch.device
) -> QwenVLTower:
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
        {prefix: lambda: _make_module(kind, config)},
        dtype=dtype,
        device=device,
    )
    return QwenVLTower(
        modules[prefix],
        scaling_of(processor, device),
        most_pixels=int(processor.size["longest_edge"]),
        num_deepstack=_num_deepstack(folder, config) if kind == "qwen3-vl" else 0,
        dtype=dtype,
    )


def _num_deepstack(folder: Path, config: Any) -> int:
    """How many layers of the tower add to hidden states of the decoder."""
    layers = config.deepstack_visual_indexes
    if len(set(layers).intersection(range(config.depth))) != len(layers):
        raise ConfigError(
            f"{folder}: config.json needs different layers of the vision tower, 0 to "
            f"{config.depth - 1}, in deepstack_visual_indexes, got {layers}; fix the field"
        )
    return len(layers)


def _make_module(kind: VisionKind, config: Any) -> nn.Module:
    """Each is imported by itself: older versions of transformers lack the newest."""
    module: nn.Module
    if kind == "qwen2.5-vl":
        from transformers.models.qwen2_5_vl import modeling_qwen2_5_vl

        module = modeling_qwen2_5_vl.Qwen2_5_VisionTransformerPretrainedModel(config)
    elif kind == "qwen3-vl":
        from transformers.models.qwen3_vl import modeling_qwen3_vl

        module = modeling_qwen3_vl.Qwen3VLVisionModel(config)
    else:
        from transformers.models.qwen3_5 import modeling_qwen3_5

        module = modeling_qwen3_5.Qwen3_5VisionModel(config)
    return module
