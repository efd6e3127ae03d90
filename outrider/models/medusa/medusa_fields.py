"""Reads the config.json of Medusa heads: the authors' dialect, and vLLM's."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from outrider.config.draft_config import MAX_NODES
from outrider.models.config_fields import read_size, read_size_or
from outrider.models.eagle.head_fields import read_architectures
from outrider.models.head_target import HeadTargetConfig

_AUTHORS_HEADS = "medusa_num_heads"  # the name in the authors' configs
_VLLM_HEADS = "num_heads"


@dataclass(frozen=True, slots=True, kw_only=True)
class MedusaConfig:
    """The structure of all heads of a folder."""

    dialect: str
    num_heads: int  # one draft each
    num_blocks: int  # residual blocks of a head
    has_bias: bool  # in residual blocks
    shares_head: bool  # all heads have one lm_head
    draft_vocab: int


def is_medusa_config(fields: dict[str, Any]) -> bool:
    """Whether a config.json is that of Medusa heads."""
    is_vllm = fields.get("model_type") == "medusa" or "MedusaModel" in read_architectures(fields)
    return is_vllm or _AUTHORS_HEADS in fields


def count_heads(fields: dict[str, Any]) -> int:
    """How deep such heads draft."""
    return read_size(fields, _heads_key(fields), most=MAX_NODES - 1)


def parse_medusa(
    fields: dict[str, Any],
    names: Collection[str],  # canonical names of the tensors
    target: HeadTargetConfig,
) -> MedusaConfig:
    """The heads that a config.json describes. The authors' says no sizes: they are the target's."""
    is_authors = _AUTHORS_HEADS in fields
    blocks = "medusa_num_layers" if is_authors else "num_hidden_layers"
    has_biases = any(name.endswith(".bias") for name in names)
    vocab = read_size_or(fields, "vocab_size", target.vocab_size)
    return MedusaConfig(
        dialect="FasterDecoding" if is_authors else "vLLM",
        num_heads=count_heads(fields),
        num_blocks=read_size_or(fields, blocks, 1),
        has_bias=bool(fields.get("medusa_fc_bias", has_biases)),
        shares_head=bool(fields.get("original_lm_head", False)),
        draft_vocab=read_size_or(fields, "truncated_vocab_size", vocab),
    )


def _heads_key(fields: dict[str, Any]) -> str:
    return _AUTHORS_HEADS if _AUTHORS_HEADS in fields else _VLLM_HEADS
