"""Tiny GGUF files of every family and quantisation."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np

HIDDEN, INTER, HEADS, KV_HEADS, LAYERS = 256, 256, 4, 2, 1
HEAD_DIM = HIDDEN // HEADS


@dataclass
class TinyGguf:
    """A GGUF file to be written. A test changes fields, then calls `write`."""

    architecture: str
    kind: str = "F32"
    metadata: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, tuple[np.ndarray, str]] = field(default_factory=dict)  # raw rows and kind
    expected: dict[str, np.ndarray] = field(default_factory=dict)  # by Hugging Face name

    def write(self, path: Path) -> Path:
        writer = gguf.GGUFWriter(str(path), self.architecture)
        for key, value in self.metadata.items():
            _add(writer, key, value)
        for name, (raw, kind) in self.tensors.items():
            writer.add_tensor(name, raw, raw_dtype=gguf.GGMLQuantizationType[kind])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    adders = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
        list: writer.add_array,
    }
    adders[type(value)](key, value)


def sizes(architecture: str) -> dict[str, Any]:
    return {
        f"{architecture}.block_count": LAYERS,
        f"{architecture}.context_length": 128,
        f"{architecture}.embedding_length": HIDDEN,
        f"{architecture}.feed_forward_length": INTER,
        f"{architecture}.attention.head_count": HEADS,
        f"{architecture}.attention.head_count_kv": KV_HEADS,
        f"{architecture}.attention.layer_norm_rms_epsilon": 1e-6,
        f"{architecture}.rope.freq_base": 10000.0,
    }


def byte_vocabulary() -> dict[str, Any]:
    """A tokenizer of single bytes, one merge and one control token: enough for any text."""
    from tokenizers.pre_tokenizers import ByteLevel

    tokens = ["<|end|>", *sorted(ByteLevel.alphabet()), "ab"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] + [1] * (len(tokens) - 1),
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.eos_token_id": 0,
    }


def random_raw(
    rng: np.random.Generator,
    rows: int,
    kind: str,
    *,
    columns: int = HIDDEN,
    scale: float = 1.0,
) -> np.ndarray:
    """Rows of so many values as the file stores them."""
    spans = columns // 256

    def halves(num: int) -> np.ndarray:
        return (scale * rng.normal(size=(rows, spans, num))).astype(np.float16).view(np.uint8)

    if kind in ("Q4_K", "Q5_K"):  # scale and minimum, then bytes of any value
        size = {"Q4_K": 144, "Q5_K": 176}[kind]
        raw = rng.integers(0, 256, (rows, spans, size), dtype=np.uint8)
        raw[:, :, 0:4] = halves(2)
        return raw.reshape(rows, -1)
    if kind == "Q6_K":  # bytes of any value, then the scale
        raw = rng.integers(0, 256, (rows, spans, 210), dtype=np.uint8)
        raw[:, :, 208:] = halves(1)
        return raw.reshape(rows, -1)
    if kind.startswith(("IQ", "Q2", "Q3", "TQ", "MX")):  # small bytes: no scale is infinite
        block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
        return rng.integers(0, 60, (rows, columns // block * size), dtype=np.uint8)
    values = (scale * rng.normal(size=(rows, columns))).astype(np.float32)
    return gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind])


def interleave(raw: np.ndarray, heads: int) -> np.ndarray:
    """Store the two rotary halves of each head in pairs, as converters to GGUF do for llama."""
    halves = raw.reshape(heads, 2, len(raw) // heads // 2, -1)
    return halves.swapaxes(1, 2).reshape(raw.shape)


def tiny_gguf(architecture: str, *, kind: str = "F32", seed: int = 0) -> TinyGguf:
    rng = np.random.default_rng(seed)
    tiny = TinyGguf(architecture, kind, metadata=sizes(architecture) | byte_vocabulary())
    vocab = len(tiny.metadata["tokenizer.ggml.tokens"])

    def add_matrix(name: str, hf_name: str, rows: int, heads: int = 0) -> None:
        raw = random_raw(rng, rows, kind)
        values = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind])
        tiny.expected[hf_name] = values
        tiny.tensors[name] = (interleave(raw, heads) if heads else raw, kind)

    def add_vector(name: str, hf_name: str, size: int) -> None:
        tiny.expected[hf_name] = rng.normal(size=size).astype(np.float32)
        tiny.tensors[name] = (tiny.expected[hf_name], "F32")

    is_llama = architecture == "llama"
    add_matrix("token_embd.weight", "model.embed_tokens.weight", vocab)
    add_vector("output_norm.weight", "model.norm.weight", HIDDEN)
    for layer in range(LAYERS):
        ours, theirs = f"model.layers.{layer}.", f"blk.{layer}."
        attention = ours + "self_attn."
        add_vector(theirs + "attn_norm.weight", ours + "input_layernorm.weight", HIDDEN)
        add_vector(theirs + "ffn_norm.weight", ours + "post_attention_layernorm.weight", HIDDEN)
        for letter, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
            paired = heads if is_llama and letter in "qk" else 0
            ggml, hf = f"{theirs}attn_{letter}", f"{attention}{letter}_proj"
            add_matrix(ggml + ".weight", hf + ".weight", heads * HEAD_DIM, paired)
            if architecture == "qwen2":
                add_vector(ggml + ".bias", hf + ".bias", heads * HEAD_DIM)
            if architecture == "qwen3" and letter in "qk":
                add_vector(ggml + "_norm.weight", f"{attention}{letter}_norm.weight", HEAD_DIM)
        add_matrix(theirs + "attn_output.weight", attention + "o_proj.weight", HIDDEN)
        for part in ("gate", "up", "down"):
            add_matrix(f"{theirs}ffn_{part}.weight", f"{ours}mlp.{part}_proj.weight", INTER)
    return tiny
