"""Adapters of draft heads, as PEFT stores them, and the drafts of rows that run through them."""

import json

import torch
from safetensors.torch import load_file, save_file

LAYER = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"]
LAYER += ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]
# What each adapter changes, in the head's own names.
FORMS = {
    "all": ["fc", *LAYER],
    "attention": LAYER[:4],
}


def write_adapter(folder, head, modules, *, seed, scale=2.0, rank=4):
    """A PEFT folder for modules of a head; returns the head's tensors with it merged."""
    tensors, generator = load_file(head / "model.safetensors"), torch.Generator().manual_seed(seed)
    stored = {}
    for name in tensors:
        module = name.removesuffix(".weight")
        if not any(module == each or module.endswith(f".{each}") for each in modules):
            continue
        outputs, inputs = tensors[name].shape
        a = torch.randn(rank, inputs, generator=generator) * inputs**-0.5
        b = torch.randn(outputs, rank, generator=generator) * 0.3
        stored[f"base_model.model.{module}.lora_A.weight"] = a
        stored[f"base_model.model.{module}.lora_B.weight"] = b
        tensors[name] = tensors[name] + scale * b @ a
    assert len(stored) == 2 * len(modules)
    folder.mkdir(parents=True)
    targets = [each.rpartition(".")[2] for each in modules]
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": scale * rank, "target_modules": targets}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file(stored, folder / "adapter_model.safetensors")
    return tensors


def drafts_of(own, requests):
    """Tokens and draft trees of each request."""
    trees, tokens = {}, {}
    for each in requests:
        own.add(each)
    while own.has_work:
        for update in own.step():
            assert update.finish != "error", update.reason
            tokens.setdefault(update.request_id, []).extend(update.tokens)
            rounds = [each.tokens for each in update.rounds]
            trees.setdefault(update.request_id, []).extend(rounds)
    assert not own.num_drafter_failures
    return {key: (tokens[key], trees[key]) for key in tokens}
