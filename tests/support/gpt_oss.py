"""Folders of a tiny gpt-oss: MXFP4 experts as published, and the numbers they stand for."""

import json

import torch
from safetensors.torch import load_file, save_file
from transformers import GptOssConfig, GptOssForCausalLM
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from outrider.models.decoder_loader import load_decoder
from outrider.runtime.draft_kinds import NgramDraft
from support.matrix import TREES
from support.tiny_sizes import SIZES

_LARGEST, _SMALLEST = 125, 122  # exponents of scales: numbers of about one


def write_gpt_oss(folder):
    """Writes `folder/packed` and `folder/plain`; returns the model of the second."""
    torch.manual_seed(0)
    config = GptOssConfig(
        **SIZES | {"intermediate_size": 96},  # three blocks: ranks have different numbers of them
        head_dim=16,
        sliding_window=5,
        num_local_experts=4,
        num_experts_per_tok=2,
    )
    model = GptOssForCausalLM(config).eval()
    model.config._attn_implementation = "eager"
    packed = {}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(0.0, 0.3)
            if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
                blocks, scales = _random_blocks(parameter.shape)
                packed |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
                parameter.copy_(convert_moe_packed_tensors(blocks, scales, dtype=torch.float32))
    model.save_pretrained(folder / "plain")
    _write_packed(folder, packed)
    return model


def _write_packed(folder, packed):
    plain = load_file(folder / "plain" / "model.safetensors")
    others = {name: value for name, value in plain.items() if f"{name}_blocks" not in packed}
    target = folder / "packed"
    target.mkdir()
    save_file(others | packed, target / "model.safetensors")
    fields = json.loads((folder / "plain" / "config.json").read_text())
    fields["quantization_config"] = {
        "quant_method": "mxfp4",
        "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"],
    }
    (target / "config.json").write_text(json.dumps(fields))


def _random_blocks(shape):
    """Blocks and scales of weights [experts, in, out], stored as [experts, out, in / 32, ...]."""
    experts, inputs, outputs = shape
    blocks = torch.randint(0, 256, (experts, outputs, inputs // 32, 16), dtype=torch.uint8)
    scales = torch.randint(_SMALLEST, _LARGEST, (experts, outputs, inputs // 32), dtype=torch.uint8)
    return blocks, scales


class PackedModels:
    """A target with MXFP4 experts, and what drafts for it, as `mismatches` takes them."""

    def __init__(self, root, device="cpu"):
        self.theirs = write_gpt_oss(root)
        place = torch.device(device)
        self.target = load_decoder(root / "packed", dtype="float32", device=place)

    def draft(self, drafter, tree):
        del drafter
        return NgramDraft(budget=TREES[tree], min_match=1, max_match=3)
