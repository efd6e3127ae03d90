"""Tiny Qwen3.5 folders as they are published: a text model, a model of pictures, a draft module."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import (
    PreTrainedModel,
    Qwen3_5Config,
    Qwen3_5ForConditionalGeneration,
    Qwen3_5MoeConfig,
    Qwen3_5MoeForConditionalGeneration,
)

from support.recurrent import tiny_recurrent
from support.recurrent_module import QwenModule

EYES = {
    "depth": 1,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_heads": 2,
    "out_hidden_size": 32,
    "num_position_embeddings": 16,
}
KINDS = {
    "qwen3.5": (Qwen3_5Config, Qwen3_5ForConditionalGeneration),
    "qwen3.5-moe": (Qwen3_5MoeConfig, Qwen3_5MoeForConditionalGeneration),
}


def save_with_pictures(
    folder: Path, family: str, *, is_tied: bool = False, are_experts_stacked: bool = False
) -> PreTrainedModel:
    """Save a tiny text model and its random module inside a model of pictures; returns that."""
    text = tiny_recurrent(family)
    config, kind = KINDS[family]
    whole = kind(
        config(text_config=text.config.to_dict(), vision_config=EYES, tie_word_embeddings=is_tied)
    ).eval()
    whole.model.language_model.load_state_dict(text.model.state_dict())
    if not is_tied:
        whole.lm_head.load_state_dict(text.lm_head.state_dict())
    whole.save_pretrained(folder, save_original_format=not are_experts_stacked)
    edit_tensors(folder, lambda stored: stored | QwenModule(text).tensors())
    edit_fields(folder, {"mtp_num_hidden_layers": 1})
    return whole


def edit_fields(folder: Path, text=(), outer=()) -> None:
    """Change fields of the text model, and fields that stand outside."""
    path = folder / "config.json"
    fields = json.loads(path.read_text()) | dict(outer)
    fields["text_config"] |= dict(text)
    path.write_text(json.dumps(fields))


def edit_tensors(folder: Path, change) -> None:
    path = folder / "model.safetensors"
    stored: dict[str, torch.Tensor] = change(load_file(path))
    save_file({name: each.contiguous() for name, each in stored.items()}, path, {"format": "pt"})
