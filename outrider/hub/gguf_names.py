"""Tensor names of the llama and qwen families in GGUF files and in Hugging Face folders."""

import re
from dataclasses import dataclass

from outrider.errors import ConfigError
from outrider.hub.gguf_read import GgufFile

ROPE_FREQS = "rope_freqs.weight"  # llama 3 frequency factors; written to config.json
LM_HEAD = "output.weight"

_TOP_LEVEL = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    LM_HEAD: "lm_head.weight",
}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER_NAME = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_NORMS_AND_PROJECTIONS = frozenset(
    f"{name}.weight" for name in _IN_LAYER if name not in ("attn_q_norm", "attn_k_norm")
)
_QKV_BIASES = frozenset({"attn_q.bias", "attn_k.bias", "attn_v.bias"})


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufFamily:
    """What one GGUF architecture means in Hugging Face terms."""

    name: str  # the architecture in GGUF, equal to the model_type in config.json
    class_name: str
    layer_tensors: frozenset[str]  # every layer has exactly these
    is_interleaved: bool  # q and k rows are stored as rotary pairs, and are written as halves


FAMILIES = {
    "llama": GgufFamily(
        name="llama",
        class_name="LlamaForCausalLM",
        layer_tensors=_NORMS_AND_PROJECTIONS,
        is_interleaved=True,
    ),
    "qwen2": GgufFamily(
        name="qwen2",
        class_name="Qwen2ForCausalLM",
        layer_tensors=_NORMS_AND_PROJECTIONS | _QKV_BIASES,
        is_interleaved=False,
    ),
    "qwen3": GgufFamily(
        name="qwen3",
        class_name="Qwen3ForCausalLM",
        layer_tensors=_NORMS_AND_PROJECTIONS | {"attn_q_norm.weight", "attn_k_norm.weight"},
        is_interleaved=False,
    ),
}


def gguf_family_of(file: GgufFile) -> GgufFamily:
    architecture = file.metadata.text("general.architecture")
    if architecture not in FAMILIES:
        raise ConfigError(
            f"{file.name} has the unsupported architecture {architecture!r}; "
            f"use a model of {', '.join(FAMILIES)}"
        )
    return FAMILIES[architecture]


def hugging_face_name(name: str) -> str:
    """The name of a tensor in a Hugging Face folder. `check_tensors` has accepted the GGUF name."""
    if name in _TOP_LEVEL:
        return _TOP_LEVEL[name]
    matched = _LAYER_NAME.fullmatch(name)
    assert matched is not None, name
    layer, module, kind = matched.groups()
    return f"model.layers.{layer}.{_IN_LAYER[module]}.{kind}"


def check_gguf_tensors(file: GgufFile, family: GgufFamily) -> None:
    """Refuse a file with missing or unknown tensors."""
    num_layers = file.metadata.size(f"{family.name}.block_count")
    if num_layers > len(file.tensors):  # a damaged count would fill the memory below
        raise ConfigError(f"{file.name} lacks layers of its {num_layers}; use a complete GGUF file")
    needed = {"token_embd.weight", "output_norm.weight"} | {
        f"blk.{layer}.{tensor}" for layer in range(num_layers) for tensor in family.layer_tensors
    }
    present = set(file.tensors)
    if unknown := sorted(present - needed - {LM_HEAD, ROPE_FREQS}):
        raise ConfigError(
            f"{file.name} holds {unknown[0]!r}, which a plain {family.name} model has not; "
            "use the Hugging Face folder of this model"
        )
    if missing := sorted(needed - present):
        raise ConfigError(f"{file.name} lacks the tensor {missing[0]}; use a complete GGUF file")
