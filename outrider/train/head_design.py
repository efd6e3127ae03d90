"""The design of a new head: its sizes and layout, and the config.json that describes it."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from outrider.errors import ConfigError
from outrider.models.eagle.head_config import HeadConfig
from outrider.models.eagle.head_dialects import parse_head
from outrider.models.expert_config import NoExperts
from outrider.models.model_config import ModelConfig, read_config

HeadLayout = Literal["eagle3", "eagle3.1"]
ExportFormat = Literal["eagle3", "speculators"]

MIN_LAYERS = 3  # the usual aux layers are after 2, L // 2 and L - 3 layers

# Fields of the target's config.json about rotary embedding and context.
_ROTATION = ("rope_theta", "rope_scaling", "rope_parameters", "max_position_embeddings")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadDesign:
    """The sizes that a user chooses. All others follow from the target."""

    layout: HeadLayout
    draft_vocab: int
    intermediate: int  # 0: the target's
    heads: int  # 0: the target's
    kv_heads: int  # 0: the target's


def head_fields(design: HeadDesign, target_folder: Path) -> dict[str, Any]:
    """The config.json of such a head in the layout that SGLang and vLLM share.

    The aux layers are the default ones and are not listed: engines count such a list differently.
    """
    target, target_fields = read_config(target_folder), _json(target_folder / "config.json")
    if target.num_layers < MIN_LAYERS:
        raise ConfigError(
            f"the target has {target.num_layers} layers, and an EAGLE-3 head reads after 2, L/2 "
            f"and L-3 of them; use a target of {MIN_LAYERS} layers or more"
        )
    if not isinstance(target.experts, NoExperts):
        raise ConfigError("heads are not trained for models with experts yet; use a dense target")
    has_norms = design.layout == "eagle3.1"
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "hidden_size": target.block.hidden,
        "intermediate_size": design.intermediate or target.block.intermediate,
        "num_attention_heads": design.heads or target.plain_attention.heads,
        "num_key_value_heads": design.kv_heads or target.plain_attention.kv_heads,
        "head_dim": target.plain_attention.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": target.block.norm_eps,
        "vocab_size": target.vocab_size,
        "draft_vocab_size": design.draft_vocab,
        "tie_word_embeddings": False,
        "attention_bias": False,
        **{key: target_fields[key] for key in _ROTATION if key in target_fields},
        **{
            key: target_fields[key]
            for key in ("bos_token_id", "eos_token_id")
            if key in target_fields
        },
        **({"fc_norm": True, "norm_output": True} if has_norms else {}),
    }


def speculators_fields(
    fields: dict[str, Any], config: HeadConfig, *, target: str, architectures: list[str]
) -> dict[str, Any]:
    """The config.json of the same head for the speculators library."""
    own = ("architectures", "draft_vocab_size", "fc_norm", "norm_output")
    layer = {key: value for key, value in fields.items() if key not in own}
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.3.0",
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {
                    "proposal_type": "greedy",
                    "speculative_tokens": 4,
                    "verifier_accept_k": 1,
                    "accept_tolerance": 0.0,
                }
            ],
            "verifier": {"name_or_path": target, "architectures": architectures},
        },
        "transformer_layer_config": {**layer, "architectures": ["LlamaForCausalLM"]},
        "draft_vocab_size": config.output.draft_vocab,
        "norm_before_residual": config.layer.is_residual_normed,
        "norm_before_fc": False,
        "fc_norm": config.aux.norm == "each",
        "norm_output": config.output.is_state_normed,
        "target_hidden_size": config.aux.target_hidden,
        "eagle_aux_hidden_state_layer_ids": list(config.aux.aux_layers.layers),
        "embed_requires_grad": False,
    }


def design_config(fields: dict[str, Any], target: ModelConfig) -> HeadConfig:
    """The head that the engine's loader reads from these fields."""
    return parse_head(fields, (), target)


def token_maps(
    ids: torch.Tensor,  # [draft_vocab] increasing
    vocab: int,
) -> dict[str, torch.Tensor]:
    """The stored draft vocabulary: offsets to the target's ids, and which ids can be drafted."""
    return {
        "d2t": ids - torch.arange(ids.shape[0]),
        "t2d": torch.zeros(vocab, dtype=torch.bool).index_fill(0, ids, True),
    }


def _json(path: Path) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return fields
