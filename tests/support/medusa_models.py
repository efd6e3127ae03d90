"""Tiny random Medusa heads in both formats, and what they should draft."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from support.block_reference import BlockReference
from support.head_oracle import Oracle
from support.heads import Variant


@dataclass(frozen=True, kw_only=True)
class MedusaVariant:
    """What the heads compute, in any dialect."""

    num_heads: int = 4
    num_blocks: int = 1
    has_bias: bool = True
    draft_vocab: int = 0  # 0: the target's
    shares_head: bool = False


def write_medusa(
    folder: Path, target, variant: MedusaVariant, *, dialect: str = "vLLM", seed: int = 0
) -> dict[str, torch.Tensor]:
    """Heads for the target; their weights by canonical name. Equal seeds give equal weights."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = _tensors(target, variant, seed)
    if dialect == "vLLM":
        save_file(tensors, folder / "model.safetensors")
    else:
        stored = {_authors_name(name, variant): each for name, each in tensors.items()}
        torch.save(stored, folder / "medusa_lm_head.pt")
    (folder / "config.json").write_text(json.dumps(_fields(target, variant, dialect)))
    return tensors


def _tensors(target, variant: MedusaVariant, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    width, vocab = target.hidden, target.vocab_size
    tensors = {}
    for head in range(variant.num_heads):
        for block in range(variant.num_blocks):
            name = f"blocks.{head}.layers.{block}"
            weight = torch.randn(width, width, generator=generator) * width**-0.5
            tensors[f"{name}.weight"] = weight
            if variant.has_bias:
                tensors[f"{name}.bias"] = torch.randn(width, generator=generator)
        if not head or not variant.shares_head:
            shape = (variant.draft_vocab or vocab, width)
            tensors[f"lm_heads.{head}.weight"] = torch.randn(shape, generator=generator)
    if variant.draft_vocab:
        ids = torch.randperm(vocab, generator=generator)[: variant.draft_vocab]
        tensors["token_map"] = ids  # not sorted
    return tensors


def _authors_name(name: str, variant: MedusaVariant) -> str:
    kind, head, *rest = name.split(".")
    if kind == "lm_heads":
        return f"{head}.{variant.num_blocks}.weight"
    return f"{head}.{rest[1]}.linear.{rest[2]}"


def _fields(target, variant: MedusaVariant, dialect: str) -> dict[str, Any]:
    if dialect == "FasterDecoding":
        return {
            "medusa_num_heads": variant.num_heads,
            "medusa_num_layers": variant.num_blocks,
            "base_model_name_or_path": "tiny/target",
        }
    return {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "hidden_size": target.hidden,
        "vocab_size": target.vocab_size,
        "truncated_vocab_size": variant.draft_vocab or target.vocab_size,
        "num_heads": variant.num_heads,
        "num_hidden_layers": variant.num_blocks,
        "medusa_fc_bias": variant.has_bias,
        "original_lm_head": variant.shares_head,
    }


class MedusaOracle(BlockReference):
    """The heads after one whole row, without a cache."""

    def __init__(self, model, variant: MedusaVariant, tensors: dict[str, torch.Tensor]) -> None:
        self._variant, self._weights = variant, tensors
        self._target = Oracle(model, Variant(algorithm="eagle"), {})

    def marginal(self, states: torch.Tensor, depth: int) -> torch.Tensor:  # [draft_vocab]
        own = 0 if self._variant.shares_head else depth
        return self._weights[f"lm_heads.{own}.weight"] @ states[depth]

    def target_ids(self, vocab: int) -> list[int]:
        return self._weights.get("token_map", torch.arange(vocab)).tolist()

    def run_block(self, tokens: list[int]) -> torch.Tensor:  # [heads, width]
        """The states of all heads, which read the state before the last token."""
        state = self._target.aux_hidden_states(tokens[:-1])[-1]
        return torch.stack([self._run(head, state) for head in range(self._variant.num_heads)])

    def _run(self, head: int, x: torch.Tensor) -> torch.Tensor:  # [width] both
        for block in range(self._variant.num_blocks):
            name = f"blocks.{head}.layers.{block}"
            bias = self._weights.get(f"{name}.bias", torch.zeros(()))
            x = x + F.silu(self._weights[f"{name}.weight"] @ x + bias)
        return x
