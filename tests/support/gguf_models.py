"""GGUF files of tiny transformers models, as llama.cpp converts them.

Names come from the tables of the gguf package. What is stored in another way follows the rules of
llama.cpp's converter: pairs of rotary rows, norms plus one, experts in one tensor.
"""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

from support.gguf_files import TinyGguf, byte_vocabulary, interleave

_ARCHITECTURES = {
    "qwen3moe": gguf.MODEL_ARCH.QWEN3MOE,
    "gemma3": gguf.MODEL_ARCH.GEMMA3,
    "phi3": gguf.MODEL_ARCH.PHI3,
    "mistral3": gguf.MODEL_ARCH.MISTRAL3,
}
_PARTS = ("gate_proj", "up_proj", "down_proj")


def write_model(
    model: Any, architecture: str, path: Path, *, metadata: dict[str, Any], kind: str = "F32"
) -> Path:
    """A file with the model's tensors, matrices of which have this kind."""
    config = model.config
    tiny = TinyGguf(architecture, kind, metadata=byte_vocabulary())
    names = gguf.get_tensor_name_map(_ARCHITECTURES[architecture], config.num_hidden_layers)
    for name, values in _stored(model, architecture).items():
        place = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert place is not None, name
        stored = kind if values.ndim > 1 else "F32"
        raw = gguf.quants.quantize(values, gguf.GGMLQuantizationType[stored])
        tiny.tensors[place] = (raw, stored)
    for length in ("long", "short"):
        if factors := config.rope_parameters.get(f"{length}_factor"):
            values = np.array(factors, np.float32)
            tiny.tensors[f"rope_factors_{length}.weight"] = (values, "F32")
    sizes = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
    }
    tiny.metadata |= {f"{architecture}.{key}": value for key, value in (sizes | metadata).items()}
    return tiny.write(path)


def _stored(model: Any, architecture: str) -> dict[str, np.ndarray]:
    tensors = {
        name: tensor.detach().float().numpy()
        for name, tensor in model.state_dict().items()
        if name != "lm_head.weight" or not model.config.tie_word_embeddings
    }
    if architecture == "gemma3":
        return {n: each + 1 if n.endswith("norm.weight") else each for n, each in tensors.items()}
    if architecture == "mistral3":
        heads = {
            "q_proj": model.config.num_attention_heads,
            "k_proj": model.config.num_key_value_heads,
        }
        return {
            n: interleave(each, heads[n.split(".")[-2]]) if n.split(".")[-2] in heads else each
            for n, each in tensors.items()
        }
    return _with_stacked_experts(tensors)


def _with_stacked_experts(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Gates and ups of all experts apart: [experts, out, in] each."""
    found = {}
    for name, values in tensors.items():
        before, end, part = name.partition(".experts.")
        if not end:
            found[name] = values
        elif part == "gate_up_proj":
            for half, each in zip(_PARTS, np.split(values, 2, axis=1), strict=False):
                found[f"{before}.experts.{half}.weight"] = np.ascontiguousarray(each)
        else:
            found[f"{before}.experts.{part}.weight"] = values
    return found


def random_norms(model: Any) -> Any:
    """The same model with norms that are neither all ones nor all zeros."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                noise = torch.rand(parameter.shape, generator=generator)
                parameter.copy_(parameter + 0.5 * noise)
    return model.eval()
