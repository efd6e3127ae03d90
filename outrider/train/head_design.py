"""The design of a new head: its sizes and layout, and the config.json that describes it."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from outrider.errors import ConfigError
from outrider.models.dflash.dflash_dialects import is_dflash_config
from outrider.models.dflash.dflash_tensors import CONFIDENCE
from outrider.models.eagle.head_config import HeadConfig
from outrider.models.eagle.head_dialects import parse_head
from outrider.models.eagle.peagle_fields import SPECULATIVE_TOKENS
from outrider.models.expert_config import NoExperts
from outrider.models.model_config import ModelConfig, read_config
from outrider.train.mask_token import choose_mask_token

HeadLayout = Literal["eagle3", "eagle3.1"]
ExportFormat = Literal["eagle3", "speculators"]

_CONTEXT_LAYERS = 5  # that a head with blocks reads, if the target has more
# A trained head with blocks normalises queries and keys per head.
_BLOCK_NAMES = ("layers.0.self_attn.q_norm.weight",)
_CONFIDENCE_NAMES = (f"{CONFIDENCE}.weight", f"{CONFIDENCE}.bias")
MIN_LAYERS = 3  # the usual aux layers are after 2, L // 2 and L - 3 layers

# Fields of the target's config.json about rotary embedding and context.
_ROTATION = ("rope_theta", "rope_scaling", "rope_parameters", "max_position_embeddings")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadDesign:
    """The sizes that a user chooses. All others follow from the target."""

    layout: HeadLayout
    draft_vocab: int
    layers: int  # EAGLE-3: 1
    masked_drafts: int  # P-EAGLE: of one pass, whose rows after the first read masks; EAGLE-3: 0
    intermediate: int  # 0: the target's
    heads: int  # 0: the target's
    kv_heads: int  # 0: the target's


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockDesign:
    """The same for a head that drafts blocks. It scores with the target's lm_head."""

    layers: int
    block: int  # slots
    is_next: bool  # a slot predicts the next token, not its own
    is_causal: bool  # a slot reads no later slots
    markov_rank: int  # 0: the token before adds nothing
    has_confidence: bool  # it estimates the chance of its drafts
    intermediate: int  # 0: the target's
    heads: int  # 0: the target's
    kv_heads: int  # 0: the target's

    @property
    def num_drafts(self) -> int:
        return self.block if self.is_next else self.block - 1


def head_fields(design: HeadDesign, target_folder: Path) -> dict[str, Any]:
    """The config.json of such a head in the layout that SGLang and vLLM share; of P-EAGLE, vLLM's.

    The aux layers are the default ones and are not listed: engines count such a list differently.
    """
    target = dense_target(target_folder)
    has_norms = design.layout == "eagle3.1"
    masks: dict[str, Any] = {}
    if design.masked_drafts:
        mask_token = choose_mask_token(target_folder, target)
        masks = {"ptd_token_id": mask_token, SPECULATIVE_TOKENS: design.masked_drafts}
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "num_hidden_layers": design.layers,
        **masks,
        **_layer_fields(design, target, target_folder),
        "draft_vocab_size": design.draft_vocab,
        **({"fc_norm": True, "norm_output": True} if has_norms else {}),
    }


def block_fields(design: BlockDesign, target_folder: Path) -> dict[str, Any]:
    """The config.json of such a head in z-lab's layout, or DeepSpec's if slots predict the next
    token. vLLM and SGLang read both.
    """
    target = dense_target(target_folder)
    own = {
        "target_layer_ids": _spread_layers(target.num_layers),
        "block_size": design.block,
        "mask_token_id": choose_mask_token(target_folder, target),
    }
    if not design.is_next and not design.markov_rank:
        place: dict[str, Any] = {"dflash_config": own}
        architecture = "DFlashDraftModel"
    else:
        place = {**own, "markov_rank": design.markov_rank, "markov_head_type": "vanilla"}
        place |= {"sample_from_anchor": design.is_next}
        place |= {"enable_confidence_head": design.has_confidence}
        place |= {"confidence_head_with_markov": design.has_confidence and design.markov_rank > 0}
        architecture = "Qwen3DSparkModel"
    return {
        "architectures": [architecture],
        "model_type": "qwen3",
        "num_hidden_layers": design.layers,
        **_layer_fields(design, target, target_folder),
        "num_target_layers": target.num_layers,
        # SGLang reads `is_causal` here only, and of layers that have a type.
        "is_causal": design.is_causal,
        "layer_types": ["full_attention"] * design.layers,
        **place,
    }


def _spread_layers(num_layers: int) -> list[int]:
    """Layers whose output the context reads: up to five, from the second to the fourth from last.

    The last layer is never read: engines differ in whether that is before or after its norm.
    """
    num = min(_CONTEXT_LAYERS, num_layers - 1)
    last = max(num_layers - 3, min(num_layers - 2, num - 1))
    first = min(1, last + 1 - num)
    return sorted({round(first + i * (last - first) / max(num - 1, 1)) for i in range(num)})


def dense_target(target_folder: Path) -> ModelConfig:
    """The config of a target that heads are trained for; others are refused."""
    target = read_config(target_folder)
    if target.num_layers < MIN_LAYERS:
        raise ConfigError(
            f"the target has {target.num_layers} layers, and a head reads between several of "
            f"them; use a target of {MIN_LAYERS} layers or more"
        )
    if not isinstance(target.experts, NoExperts):
        raise ConfigError("heads are not trained for models with experts yet; use a dense target")
    return target


def _layer_fields(
    design: HeadDesign | BlockDesign, target: ModelConfig, target_folder: Path
) -> dict[str, Any]:
    """The sizes of a layer, and what follows from the target."""
    theirs = _json(target_folder / "config.json")
    copied = (*_ROTATION, "bos_token_id", "eos_token_id")
    return {
        "hidden_size": target.block.hidden,
        "intermediate_size": design.intermediate or target.block.intermediate,
        "num_attention_heads": design.heads or target.plain_attention.heads,
        "num_key_value_heads": design.kv_heads or target.plain_attention.kv_heads,
        "head_dim": target.plain_attention.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": target.block.norm_eps,
        "vocab_size": target.vocab_size,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "rope_theta": target.rope.theta,  # engines have different defaults
        **{key: theirs[key] for key in copied if key in theirs},
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
    names: tuple[str, ...] = _BLOCK_NAMES if is_dflash_config(fields) else ()
    names += _CONFIDENCE_NAMES if fields.get("enable_confidence_head") else ()
    return parse_head(fields, names, target)


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
