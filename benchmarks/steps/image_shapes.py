"""Shapes of models that read images, for engines with random weights."""

from dataclasses import dataclass
from typing import Any

import torch

from outrider.models.vision.pixel_scaling import PixelScaling
from outrider.models.vision.vision_tower import VisionTower

Fields = dict[str, Any]  # of a config.json
MERGE = 2  # patches that become one token, in each direction


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageShape:
    """A decoder and its vision tower."""

    patch: int  # edge in pixels
    tower: Fields
    decoder: Fields
    tiny_tower: Fields  # what a shape that runs fast on a CPU has instead
    tiny_decoder: Fields


_TINY = {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
}
_TINY_TOWER = {
    "depth": 2,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_heads": 2,
    "out_hidden_size": _TINY["hidden_size"],
}
_QWEN = {"max_position_embeddings": 128000, "rms_norm_eps": 1e-6}

SHAPES = {
    "qwen2.5-vl-7b": ImageShape(
        patch=14,
        tower={
            "depth": 32,
            "hidden_size": 1280,
            "intermediate_size": 3420,
            "num_heads": 16,
            "out_hidden_size": 3584,
        },
        decoder=_QWEN
        | {
            "architectures": ["Qwen2_5_VLForConditionalGeneration"],
            "num_hidden_layers": 28,
            "hidden_size": 3584,
            "intermediate_size": 18944,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
            "vocab_size": 152064,
            "rope_theta": 1e6,
            "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
        },
        tiny_tower=_TINY_TOWER,
        tiny_decoder=_TINY | {"rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}},
    ),
    "qwen3-vl-8b": ImageShape(
        patch=16,
        tower={
            "depth": 27,
            "hidden_size": 1152,
            "intermediate_size": 4304,
            "num_heads": 16,
            "out_hidden_size": 4096,
            "num_position_embeddings": 2304,
            "deepstack_visual_indexes": [8, 16, 24],
        },
        decoder={
            "architectures": ["Qwen3VLForConditionalGeneration"],
            "text_config": _QWEN
            | {
                "num_hidden_layers": 36,
                "hidden_size": 4096,
                "intermediate_size": 12288,
                "num_attention_heads": 32,
                "num_key_value_heads": 8,
                "head_dim": 128,
                "vocab_size": 151936,
                "rope_theta": 5e6,
                "rope_scaling": {"rope_type": "default", "mrope_section": [24, 20, 20]},
            },
        },
        tiny_tower=_TINY_TOWER | {"deepstack_visual_indexes": [0, 1]},
        tiny_decoder={
            "text_config": _QWEN | _TINY | {"rope_scaling": {"mrope_section": [4, 2, 2]}}
        },
    ),
}


def make_dummy_tower(
    shape: ImageShape, *, device: torch.device, dtype: torch.dtype, is_tiny: bool
) -> VisionTower:
    """A module of transformers, with the weights that it begins with."""
    from outrider.models.vision.qwen_vl_tower import QwenVLTower

    fields = shape.tower | shape.tiny_tower if is_tiny else shape.tower
    with torch.device(device):
        module = _make_module(fields).to(dtype).eval()
    scaling = PixelScaling(
        factor=1 / 255, mean=torch.full((3,), 0.5, device=device), std=torch.ones(3, device=device)
    )
    return QwenVLTower(
        module,
        scaling,
        most_pixels=1 << 20,
        num_deepstack=len(fields.get("deepstack_visual_indexes", ())),
        dtype=dtype,
    )


def _make_module(fields: Fields) -> Any:
    from transformers import Qwen2_5_VLConfig, Qwen3VLConfig
    from transformers.models.qwen2_5_vl import modeling_qwen2_5_vl
    from transformers.models.qwen3_vl import modeling_qwen3_vl

    if "deepstack_visual_indexes" in fields:
        config = Qwen3VLConfig(vision_config=fields).vision_config
        config._attn_implementation = "sdpa"
        return modeling_qwen3_vl.Qwen3VLVisionModel(config)
    config = Qwen2_5_VLConfig(vision_config=fields).vision_config
    config._attn_implementation = "sdpa"
    return modeling_qwen2_5_vl.Qwen2_5_VisionTransformerPretrainedModel(config)
