"""Tiny random draft heads in the formats of all projects."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from outrider.models.head_target import HeadTargetConfig
from outrider.models.model_config import AttentionConfig

DIALECTS = {
    "eagle": ("safeailab", "sglang", "vllm"),
    "eagle3": ("safeailab", "sglang", "vllm", "speculators"),
}
LAYER = "layers.0."
LATENTS = {  # sizes of heads with latents; those of targets are others
    "kv_lora_rank": 20,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4,
    "v_head_dim": 10,
}
LATENT_HEADS = 4
LATENT_ARCHITECTURES = {
    "sglang": "DeepseekV3ForCausalLMEagle3",
    "vllm": "Eagle3DeepseekV2ForCausalLM",
}


@dataclass(frozen=True, kw_only=True)
class Variant:
    """What a head computes, in any dialect. Zeros and empty tuples mean the target's values."""

    algorithm: str = "eagle3"
    hidden: int = 0
    head_dim: int = 8
    intermediate: int = 40
    draft_vocab: int = 0  # 0: two thirds of the target's for eagle3, all of it for eagle
    layers: tuple[int, ...] = ()  # captured after this many layers; empty: the default, not written
    uses_aux: bool = True
    fc_norm: bool = False
    norm_before_fc: bool = False
    norm_before_residual: bool = False
    norm_output: bool = False
    fc_bias: bool = False
    attention_bias: bool = False
    head_norm: bool = False
    own_embedding: bool = False
    own_head: bool = True  # eagle never has one
    theta: float = 10000.0
    num_layers: int = 1
    later_norm: str = "input_layernorm"  # that layers after the first apply; they store both
    has_latents: bool = False  # latent attention (MLA), of EAGLE-3 only
    query_rank: int = 0  # of heads with latents; 0: whole queries

    def complete(self, target: HeadTargetConfig) -> "Variant":
        """The same with sizes in place of zeros."""
        is_reduced = self.algorithm == "eagle3" and self.own_head
        usual = target.vocab_size * 2 // 3 if is_reduced else target.vocab_size
        return replace(
            self,
            hidden=self.hidden or target.hidden,
            draft_vocab=self.draft_vocab or usual,
            own_embedding=self.own_embedding or self.hidden not in (0, target.hidden),
            own_head=self.own_head and self.algorithm == "eagle3",
        )

    def captured(self, target: HeadTargetConfig) -> tuple[int, ...]:
        count = target.num_layers
        return self.layers or (2, count // 2, count - 3)


def write_head(
    folder: Path,
    target: HeadTargetConfig,
    *,
    dialect: str = "sglang",
    algorithm: str = "eagle3",
    seed: int = 0,
    **flags: Any,
) -> Path:
    """A head for the target; `flags` are fields of `Variant`. Equal seeds give equal weights."""
    variant = Variant(algorithm=algorithm, **flags).complete(target)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        spelled(name, dialect, algorithm): tensor
        for name, tensor in head_tensors(target, variant, seed=seed).items()
    }
    fields = FIELDS[dialect](variant, target)
    (folder / "config.json").write_text(json.dumps(fields))
    if dialect == "safeailab":
        torch.save(tensors, folder / "pytorch_model.bin")
    else:
        save_file(tensors, folder / "model.safetensors")
    return folder


def head_tensors(
    target: HeadTargetConfig, variant: Variant, *, seed: int
) -> dict[str, torch.Tensor]:
    """The weights by canonical name."""
    variant = variant.complete(target)
    generator = torch.Generator().manual_seed(seed)
    shapes = _shapes(target, variant)
    tensors = {
        name: torch.rand(shape, generator=generator) + 0.5
        if "norm" in name
        else torch.randn(shape, generator=generator) * shape[-1] ** -0.5
        for name, shape in shapes.items()
    }
    if variant.draft_vocab != target.vocab_size:
        ids = torch.randperm(target.vocab_size, generator=generator)[: variant.draft_vocab]
        ids = ids.sort().values
        tensors["d2t"] = ids - torch.arange(variant.draft_vocab)
        tensors["t2d"] = torch.zeros(target.vocab_size, dtype=torch.bool).index_fill(0, ids, True)
    return tensors


def _shapes(target: HeadTargetConfig, variant: Variant) -> dict[str, tuple[int, ...]]:
    hidden, wide, own = variant.hidden, variant.intermediate, target.hidden
    query, key = _heads(target)[0] * variant.head_dim, _heads(target)[1] * variant.head_dim
    is_eagle3 = variant.algorithm == "eagle3"
    read = 2 * hidden if is_eagle3 else hidden
    num_aux_layers = len(variant.captured(target))
    norms = {"post_attention_layernorm": (hidden,)}
    if is_eagle3:
        norms |= {"input_layernorm": (hidden,), "hidden_norm": (hidden,)}
    if variant.head_norm:
        norms |= {"self_attn.q_norm": (variant.head_dim,), "self_attn.k_norm": (variant.head_dim,)}
    projections = {
        "self_attn.q_proj": (query, read),
        "self_attn.k_proj": (key, read),
        "self_attn.v_proj": (key, read),
        "self_attn.o_proj": (hidden, query),
    }
    if variant.has_latents:
        projections = latent_shapes(variant.hidden, read, variant.query_rank)
    projections |= {
        "mlp.gate_proj": (wide, hidden),
        "mlp.up_proj": (wide, hidden),
        "mlp.down_proj": (hidden, wide),
    }
    shapes = {f"{LAYER}{name}.weight": shape for name, shape in (norms | projections).items()}
    if variant.attention_bias:
        biased = [name for name in projections if name.startswith("self_attn")]
        shapes |= {f"{LAYER}{name}.bias": projections[name][:1] for name in biased}
    shapes |= _later_shapes(shapes, variant)
    if not is_eagle3:
        shapes["fc.weight"] = (hidden, 2 * hidden)
        shapes |= {"fc.bias": (hidden,)} if variant.fc_bias else {}
    else:
        shapes["norm.weight"] = (hidden,)
        shapes |= {"fc.weight": (hidden, num_aux_layers * own)} if variant.uses_aux else {}
    if variant.norm_before_fc:
        shapes["input_norm.weight"] = (num_aux_layers * own,)
    if variant.fc_norm:
        shapes |= {f"fc_norm.{index}.weight": (own,) for index in range(num_aux_layers)}
    if variant.own_embedding:
        shapes["embed_tokens.weight"] = (target.vocab_size, hidden)
    if variant.own_head:
        shapes["lm_head.weight"] = (variant.draft_vocab, hidden)
    return shapes


def _later_shapes(first, variant: Variant) -> dict[str, tuple[int, ...]]:
    """Layers after the first read the stream alone."""
    hidden, shapes = variant.hidden, {}
    for index in range(1, variant.num_layers):
        layer = {name.replace(LAYER, f"layers.{index}."): size for name, size in first.items()}
        for part in ("q_proj", "k_proj", "v_proj", "q_a_proj", "kv_a_proj_with_mqa"):
            name = f"layers.{index}.self_attn.{part}.weight"
            if name in layer:
                layer[name] = (layer[name][0], hidden)
        layer[f"layers.{index}.input_layernorm.weight"] = (hidden,)
        shapes |= layer
    return shapes


def latent_shapes(hidden: int, read: int, rank: int) -> dict[str, tuple[int, ...]]:
    """The projections and norms of latent attention; o_proj among them."""
    latent, nope, rope, value = LATENTS.values()
    queries = LATENT_HEADS * (nope + rope)
    whole = {"q_proj": (queries, read)}
    low = {"q_a_proj": (rank, read), "q_a_layernorm": (rank,), "q_b_proj": (queries, rank)}
    shapes = (low if rank else whole) | {
        "kv_a_proj_with_mqa": (latent + rope, read),
        "kv_a_layernorm": (latent,),
        "kv_b_proj": (LATENT_HEADS * (nope + value), latent),
        "o_proj": (hidden, LATENT_HEADS * value),
    }
    return {f"self_attn.{name}": shape for name, shape in shapes.items()}


def _heads(target: HeadTargetConfig) -> tuple[int, int]:
    """The heads of the target; 4 and 2 for a target that stores no keys and values."""
    attention = target.attention
    is_plain = isinstance(attention, AttentionConfig)
    return (attention.heads, attention.kv_heads) if is_plain else (4, 2)


def spelled(name: str, dialect: str, algorithm: str) -> str:
    if algorithm == "eagle3" and dialect in ("safeailab", "sglang"):
        name = name.replace(LAYER, "midlayer.")
    if dialect == "sglang" and name.startswith("fc_norm."):
        legacy = ("aux_norm_low", "aux_norm_mid", "aux_norm_high")
        index, _, rest = name.removeprefix("fc_norm.").partition(".")
        return f"{legacy[int(index)]}.{rest}" if int(index) < len(legacy) else name
    if dialect == "vllm" and name not in ("d2t", "t2d", "lm_head.weight"):
        return f"model.{name}"
    return name


def _layer_fields(variant: Variant, target: HeadTargetConfig) -> dict[str, Any]:
    heads, kv_heads = _heads(target)
    if variant.has_latents:  # exporters copy fields of experts, which such layers do not have
        latents = LATENTS | {"q_lora_rank": variant.query_rank or None, "n_routed_experts": 8}
        return (
            _plain_fields(variant, target)
            | latents
            | {
                "model_type": "deepseek_v3",
                "num_attention_heads": LATENT_HEADS,
                "num_key_value_heads": LATENT_HEADS,
            }
        )
    return _plain_fields(variant, target) | {
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": variant.head_dim,
    }


def _plain_fields(variant: Variant, target: HeadTargetConfig) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "num_hidden_layers": variant.num_layers,
        "hidden_size": variant.hidden,
        "intermediate_size": variant.intermediate,
        "rms_norm_eps": 1e-5,
        "vocab_size": target.vocab_size,
        "rope_theta": variant.theta,
        "max_position_embeddings": target.max_context,
        "attention_bias": variant.attention_bias,
        "hidden_act": "silu",
    }


def _eagle3_fields(variant: Variant, target: HeadTargetConfig) -> dict[str, Any]:
    has_own_vocabulary = variant.own_head or variant.draft_vocab != target.vocab_size
    fields: dict[str, Any] = {
        "draft_vocab_size": variant.draft_vocab if has_own_vocabulary else None,
        "norm_before_residual": variant.norm_before_residual,
        "norm_before_fc": variant.norm_before_fc,
        "fc_norm": variant.fc_norm,
        "norm_output": variant.norm_output,
    }
    if variant.hidden != target.hidden:
        fields["target_hidden_size"] = target.hidden
    return fields


def _aux(variant: Variant, *, top_level: bool) -> dict[str, Any]:
    """The captured layers, counted as the place requires."""
    key = "eagle_aux_hidden_state_layer_ids"
    ids = [layer if top_level else layer - 1 for layer in variant.layers]
    if variant.uses_aux and top_level:
        return {key: ids} if ids else {}
    nested: dict[str, Any] = {"use_aux_hidden_state": variant.uses_aux}
    if ids and not top_level:
        nested[key] = ids
    return {"eagle_config": nested}


def _safeailab(variant: Variant, target: HeadTargetConfig) -> dict[str, Any]:
    fields = _layer_fields(variant, target) | {"architectures": ["LlamaForCausalLM"]}
    if variant.algorithm == "eagle":
        return fields | {"bias": variant.fc_bias}
    return fields | _eagle3_fields(variant, target) | _aux(variant, top_level=True)


def _sglang(variant: Variant, target: HeadTargetConfig) -> dict[str, Any]:
    fields = _layer_fields(variant, target)
    if variant.algorithm == "eagle":
        return fields | {"architectures": ["LlamaForCausalLMEagle"], "bias": variant.fc_bias}
    architecture = (
        LATENT_ARCHITECTURES["sglang"] if variant.has_latents else "LlamaForCausalLMEagle3"
    )
    fields |= {"architectures": [architecture]}
    fields |= _eagle3_fields(variant, target) | _aux(variant, top_level=False)
    if variant.layers:
        fields["num_aux_hidden_states"] = len(variant.layers)
    return fields


def _vllm(variant: Variant, target: HeadTargetConfig) -> dict[str, Any]:
    fields = _layer_fields(variant, target)
    if variant.algorithm == "eagle":
        inner = fields | {"architectures": ["LlamaForCausalLM"]}
        return {"model_type": "eagle", "model": inner, "eagle_fc_bias": variant.fc_bias}
    architecture = LATENT_ARCHITECTURES["vllm"] if variant.has_latents else "Eagle3LlamaForCausalLM"
    fields |= {"architectures": [architecture]}
    return fields | _eagle3_fields(variant, target) | _aux(variant, top_level=True)


def _speculators(variant: Variant, target: HeadTargetConfig) -> dict[str, Any]:
    assert variant.algorithm == "eagle3", "speculators has no EAGLE 1 or 2"
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.3",
        "speculators_config": {
            "algorithm": "eagle3",
            "verifier": {"name_or_path": "tiny/target", "architectures": ["LlamaForCausalLM"]},
        },
        "transformer_layer_config": _layer_fields(variant, target),
        **_eagle3_fields(variant, target),
        **_aux(variant, top_level=True),
    }


FIELDS = {
    "safeailab": _safeailab,
    "sglang": _sglang,
    "vllm": _vllm,
    "speculators": _speculators,
}
