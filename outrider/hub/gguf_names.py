"""Tensor names of the supported families in GGUF files and in Hugging Face folders."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from outrider.errors import ConfigError
from outrider.hub.gguf_read import GgufFile

ROPE_FREQS = "rope_freqs.weight"  # llama 3 frequency factors; written to config.json
LONG_FACTORS, SHORT_FACTORS = "rope_factors_long.weight", "rope_factors_short.weight"  # of phi3
IN_CONFIG = frozenset({ROPE_FREQS, LONG_FACTORS, SHORT_FACTORS})
LM_HEAD = "output.weight"

_TOP_LEVEL = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    LM_HEAD: "lm_head.weight",
}
_LAYER_NAME = re.compile(r"blk\.(\d+)\.(\w+\.(?:weight|bias))")


def _weights(**names: str) -> dict[str, str]:
    return {f"{ours}.weight": f"{theirs}.weight" for ours, theirs in names.items()}


_QKV = _weights(attn_q="self_attn.q_proj", attn_k="self_attn.k_proj", attn_v="self_attn.v_proj")
_QKV_BIASES = {
    name.replace("weight", "bias"): _QKV[name].replace("weight", "bias") for name in _QKV
}
_ATTENTION = _QKV | _weights(attn_norm="input_layernorm", attn_output="self_attn.o_proj")
_FEED = _weights(ffn_gate="mlp.gate_proj", ffn_up="mlp.up_proj", ffn_down="mlp.down_proj")
_FEED_NORM = _weights(ffn_norm="post_attention_layernorm")
_HEAD_NORMS = _weights(attn_q_norm="self_attn.q_norm", attn_k_norm="self_attn.k_norm")
_LLAMA = _ATTENTION | _FEED_NORM | _FEED
# All experts of a layer are one tensor, whose first axis counts them.
_EXPERTS = _weights(
    ffn_gate_exps="mlp.experts.{}.gate_proj",
    ffn_up_exps="mlp.experts.{}.up_proj",
    ffn_down_exps="mlp.experts.{}.down_proj",
    ffn_gate_inp="mlp.gate",
)
_GEMMA_NORMS = _weights(
    post_attention_norm="post_attention_layernorm",
    ffn_norm="pre_feedforward_layernorm",
    post_ffw_norm="post_feedforward_layernorm",
)
_PHI3 = _FEED_NORM | _weights(
    attn_norm="input_layernorm",
    attn_qkv="self_attn.qkv_proj",
    attn_output="self_attn.o_proj",
    ffn_up="mlp.gate_up_proj",
    ffn_down="mlp.down_proj",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufFamily:
    """What one GGUF architecture means in Hugging Face terms."""

    name: str  # the architecture in GGUF
    fields: Mapping[str, Any]  # of config.json that all its models have
    layer_tensors: Mapping[str, str]  # every layer has exactly these; {} stands for an expert
    optional: frozenset[str] = frozenset({ROPE_FREQS})  # besides the head
    is_interleaved: bool = False  # q and k rows are stored as rotary pairs, and written as halves
    has_shifted_norms: bool = False  # norms are stored plus one


def _family(
    name: str, class_name: str, model_type: str, tensors: Mapping[str, str], **others: Any
) -> GgufFamily:
    fields = {"architectures": [class_name], "model_type": model_type, "hidden_act": "silu"}
    return GgufFamily(name=name, fields=fields, layer_tensors=tensors, **others)


_GEMMA3_FIELDS = {
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "hidden_activation": "gelu_pytorch_tanh",
}
_ALL = (
    _family("llama", "LlamaForCausalLM", "llama", _LLAMA, is_interleaved=True),
    _family("qwen2", "Qwen2ForCausalLM", "qwen2", _LLAMA | _QKV_BIASES),
    _family("qwen3", "Qwen3ForCausalLM", "qwen3", _LLAMA | _HEAD_NORMS),
    _family(
        *("qwen3moe", "Qwen3MoeForCausalLM", "qwen3_moe"),
        _ATTENTION | _FEED_NORM | _HEAD_NORMS | _EXPERTS,
    ),
    GgufFamily(
        name="gemma3",
        fields=_GEMMA3_FIELDS,
        layer_tensors=_ATTENTION | _FEED | _HEAD_NORMS | _GEMMA_NORMS,
        has_shifted_norms=True,
    ),
    _family(
        *("phi3", "Phi3ForCausalLM", "phi3", _PHI3),
        optional=frozenset({LONG_FACTORS, SHORT_FACTORS}),
    ),
    _family("mistral3", "MistralForCausalLM", "mistral", _LLAMA, is_interleaved=True),
)
FAMILIES = {family.name: family for family in _ALL}


def gguf_family_of(file: GgufFile) -> GgufFamily:
    architecture = file.metadata.text("general.architecture")
    if architecture not in FAMILIES:
        raise ConfigError(
            f"{file.name} has the unsupported architecture {architecture!r}; "
            f"use a model of {', '.join(FAMILIES)}"
        )
    return FAMILIES[architecture]


def hugging_face_name(name: str, family: GgufFamily) -> str:
    """The name of a tensor in a Hugging Face folder, with {} for the number of an expert.

    `check_gguf_tensors` has accepted the GGUF name.
    """
    if name in _TOP_LEVEL:
        return _TOP_LEVEL[name]
    matched = _LAYER_NAME.fullmatch(name)
    assert matched is not None, name
    layer, tensor = matched.groups()
    return f"model.layers.{layer}.{family.layer_tensors[tensor]}"


def check_gguf_tensors(file: GgufFile, family: GgufFamily) -> None:
    """Refuse a file with missing or unknown tensors."""
    num_layers = file.metadata.size(f"{family.name}.block_count")
    if num_layers > len(file.tensors):  # a damaged count would fill the memory below
        raise ConfigError(f"{file.name} lacks layers of its {num_layers}; use a complete GGUF file")
    needed = {"token_embd.weight", "output_norm.weight"} | {
        f"blk.{layer}.{tensor}" for layer in range(num_layers) for tensor in family.layer_tensors
    }
    present = set(file.tensors)
    if unknown := sorted(present - needed - {LM_HEAD} - family.optional):
        raise ConfigError(
            f"{file.name} holds {unknown[0]!r}, which a plain {family.name} model has not; "
            "use the Hugging Face folder of this model"
        )
    if missing := sorted(needed - present):
        raise ConfigError(f"{file.name} lacks the tensor {missing[0]}; use a complete GGUF file")
