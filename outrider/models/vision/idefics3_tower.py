"""The vision tower of Idefics3 and SmolVLM: SigLIP, a pixel shuffle and a projection."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.idefics3.modeling_idefics3 import (
    Idefics3Connector,
    Idefics3VisionTransformer,
)

from outrider.models.vision.pixel_scaling import PixelScaling, scaling_of
from outrider.models.vision.tower_tensors import load_modules
from outrider.step.host_copy import pinned_for
from outrider.wire.image_span import ImagePixels

_TOWER, _CONNECTOR = "model.vision_model.", "model.connector."


class Idefics3Tower:
    """Owns the modules of transformers. Tiles are squares of one size."""

    reads_images = True
    num_deepstack = 0

    def __init__(
        self,
        tower: Any,  # a module of transformers
        connector: Any,  # likewise
        scaling: PixelScaling,
        *,
        tile: int,  # edge in pixels
        dtype: torch.dtype,
    ) -> None:
        self._tower = tower
        self._connector = connector
        self._scaling = scaling
        self._tile = tile
        self._dtype = dtype

    @torch.inference_mode()
    def encode(self, pixels: ImagePixels) -> torch.Tensor:  # [tokens, hidden]
        host = torch.frombuffer(bytearray(pixels.values), dtype=torch.uint8).view(pixels.shape)
        device = self._scaling.mean.device
        return self._encode(pinned_for(device, host).to(device, non_blocking=True))

    @torch.inference_mode()
    def dummy_run(self) -> None:
        shape = (3, self._tile, self._tile)
        self._encode(torch.zeros(shape, dtype=torch.uint8, device=self._scaling.mean.device))

    def _encode(self, pixels: torch.Tensor) -> torch.Tensor:  # [3, tile, tile] -> [tokens, hidden]
        values = self._scaling.of(pixels)[None].to(self._dtype)
        states = self._tower(pixel_values=values).last_hidden_state  # [1, patches, channels]
        embedded: torch.Tensor = self._connector(states)  # [1, tokens, hidden]
        return embedded[0]


def load_idefics3(folder: Path, *, dtype: torch.dtype, device: torch.device) -> Idefics3Tower:
    """The tower in a folder, whose tensors must match its config.json exactly."""
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    config.vision_config._attn_implementation = "sdpa"
    processor = Idefics3ImageProcessorPil.from_pretrained(folder, local_files_only=True)
    modules = load_modules(
        folder,
        {
            _TOWER: lambda: Idefics3VisionTransformer(config.vision_config),
            _CONNECTOR: lambda: Idefics3Connector(config),
        },
        dtype=dtype,
        device=device,
    )
    return Idefics3Tower(
        modules[_TOWER],
        modules[_CONNECTOR],
        scaling_of(processor, device),
        tile=int(config.vision_config.image_size),
        dtype=dtype,
    )
