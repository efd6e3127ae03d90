"""Tiny random P-EAGLE heads in the formats of all projects, and what they should draft."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from support.block_reference import BlockReference
from support.head_oracle import Oracle
from support.heads import FIELDS, LAYER, Variant, head_tensors, spelled

PEAGLE_DIALECTS = ("SpecForge", "vLLM", "speculators")
MASK = 5


def write_peagle(
    folder: Path,
    target,
    variant: Variant,
    *,
    num_layers: int = 2,
    dialect: str = "SpecForge",
    seed: int = 0,
) -> dict[str, torch.Tensor]:
    """A head for the target; its weights by canonical name. Equal seeds give equal weights."""
    folder.mkdir(parents=True, exist_ok=True)
    variant = variant.complete(target)
    tensors = _tensors(target, variant, num_layers, seed)
    axes = (1, -1) if dialect == "vLLM" else (1, 1, -1)
    stored = tensors | {"mask_hidden": tensors["mask_hidden"].view(axes)}
    if dialect == "vLLM":
        stored = {spelled(name, "vllm", "eagle3"): each for name, each in stored.items()}
    save_file(stored, folder / "model.safetensors")
    fields = _fields(target, variant, num_layers, dialect)
    (folder / "config.json").write_text(json.dumps(fields))
    return tensors


def _tensors(target, variant: Variant, num_layers: int, seed: int) -> dict[str, torch.Tensor]:
    tensors = head_tensors(target, variant, seed=seed)
    generator = torch.Generator().manual_seed(seed + 1)
    aux_width = tensors["fc.weight"].shape[1]
    tensors["mask_hidden"] = torch.randn(aux_width, generator=generator)
    first = {name: each for name, each in tensors.items() if name.startswith(LAYER)}
    for index in range(1, num_layers):
        for name, like in first.items():
            shape = list(like.shape)
            if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight")):
                shape[1] //= 2  # the first layer reads a token and a state
            if not name.endswith("hidden_norm.weight"):
                value = torch.randn(shape, generator=generator) * shape[-1] ** -0.5
                own = name.replace(LAYER, f"layers.{index}.")
                tensors[own] = value.abs() + 0.5 if "norm" in name else value
    return tensors


def _fields(target, variant: Variant, num_layers: int, dialect: str) -> dict[str, Any]:
    if dialect == "speculators":
        fields = FIELDS["speculators"](variant, target)
        fields["transformer_layer_config"] |= {"num_hidden_layers": num_layers}
        fields["speculators_config"]["proposal_methods"] = [{"speculative_tokens": 6}]
        kind = {"architectures": ["PEagleSpeculator"], "speculators_model_type": "peagle"}
        return fields | kind | {"mask_token_id": MASK}
    fields = FIELDS["vllm"](variant, target) | {"num_hidden_layers": num_layers}
    if dialect == "SpecForge":
        return fields | {"architectures": ["PEagleDraftModel"], "mask_token_id": MASK}
    return fields | {"architectures": ["LlamaForCausalLMEagle3"], "ptd_token_id": MASK}


class PEagleOracle(BlockReference):
    """One head over one whole row: the row and the masks in one pass, without a cache."""

    def __init__(self, model, variant: Variant, tensors, *, num_layers: int, size: int) -> None:
        self._weights, self._num_layers, self._size = tensors, num_layers, size
        self._eagle = Oracle(model, variant, tensors)

    def marginal(self, states: torch.Tensor, depth: int) -> torch.Tensor:  # [draft_vocab]
        return states[depth] @ self._weights["lm_head.weight"].T

    def target_ids(self, vocab: int) -> list[int]:
        offsets = self._weights.get("d2t", torch.zeros(vocab, dtype=torch.int64))
        return (torch.arange(vocab) + offsets).tolist()

    def run_block(self, tokens: list[int]) -> torch.Tensor:  # [size, width]
        """The states of all slots of the block that begins with the last token."""
        eagle, num_masks = self._eagle, self._size - 1
        aux = eagle.aux_hidden_states(tokens[:-1])
        masks = self._weights["mask_hidden"].expand(num_masks, -1)
        states = eagle.project(torch.cat([aux, masks]))
        stream = eagle.forward([*tokens[1:], *[MASK] * num_masks], states)
        for index in range(1, self._num_layers):
            stream = eagle.run_plain(index, stream)
        return eagle.rms(stream, "norm")[-self._size :]
