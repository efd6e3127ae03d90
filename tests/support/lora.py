"""Tiny random adapters, written by PEFT, and PEFT's own answers."""

from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import PreTrainedModel

from support.tiny import tiny_model

ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def save_adapter(
    family: str | PreTrainedModel, folder: Path, *, seed: int = 0, **fields: object
) -> PreTrainedModel:
    """Save an adapter of a model, or of `tiny_model(family)`; returns PEFT's model with it."""
    config = LoraConfig(**{"r": 4, "lora_alpha": 6, "target_modules": ALL, **fields})
    base = tiny_model(family) if isinstance(family, str) else family
    model = get_peft_model(base, config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.normal_(0.0, 0.3, generator=generator)
    model.save_pretrained(folder)
    return model.eval()


@torch.inference_mode()
def greedy_tokens(model: PreTrainedModel, prompt: list[int], num: int) -> list[int]:
    """The most likely continuation, computed from scratch for every token."""
    tokens = list(prompt)
    for _ in range(num):
        logits = model(input_ids=torch.tensor([tokens])).logits[0, -1]
        tokens.append(int(logits.argmax()))
    return tokens[len(prompt) :]
