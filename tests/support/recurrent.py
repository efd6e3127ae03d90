"""Tiny Qwen3-Next and Qwen3.5 models, and a decoder of one on a small device of its own."""

import random
from functools import cache
from pathlib import Path

import torch
from transformers import (
    PreTrainedModel,
    Qwen3_5ForCausalLM,
    Qwen3_5MoeForCausalLM,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)

from outrider.kv.kv_pool import PageFamily
from outrider.kv.reference_attention import ReferenceAttention
from outrider.models.cache_layout import CacheRoom
from outrider.models.target import load_target
from support.row_harness import CPU, PAGE_SIZE, RowHarness, planner_of

VOCAB = 67
STATE, FULL = "linear_attention", "full_attention"
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 12,
    "linear_value_head_dim": 10,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "layer_types": [STATE, FULL, STATE, STATE, FULL],
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EXPERTS = {
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 24,
}
FAMILIES = {
    "qwen3-next": lambda: Qwen3NextForCausalLM(
        Qwen3NextConfig(**SIZES, **EXPERTS, mlp_only_layers=[2])
    ),
    "qwen3.5": lambda: Qwen3_5ForCausalLM(Qwen3_5TextConfig(**SIZES)),
    "qwen3.5-moe": lambda: Qwen3_5MoeForCausalLM(
        Qwen3_5MoeTextConfig(
            **{key: size for key, size in SIZES.items() if key != "intermediate_size"}, **EXPERTS
        )
    ),
}


def tiny_recurrent(family: str, *, seed: int = 0) -> PreTrainedModel:
    """Random weights, large enough that texts wander, and states that remember for a while."""
    torch.manual_seed(seed)
    model = FAMILIES[family]().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(0.0, 0.2)
            if "norm" in name:
                parameter.uniform_(-0.5, 0.5)
            if name.endswith("linear_attn.norm.weight"):
                parameter.add_(1.0)
            if name.endswith("A_log"):
                parameter.uniform_(-4.0, -1.0)
    return model


@cache
def saved_recurrent(folder: Path, family: str) -> PreTrainedModel:
    """The model, saved once per folder the way its users save it."""
    model = tiny_recurrent(family)
    model.save_pretrained(folder)
    return model


def expected_logits(model, tokens):
    """Logits after every token, from one run of the whole text."""
    with torch.inference_mode():
        return model(torch.tensor([tokens])).logits[0]


def harness_of(
    folder: Path,
    *,
    dtype="float32",
    pad=1,
    nodes=1,
    saved_nodes=None,
    rows=4,
    reach=128,
    quantization="none",
) -> RowHarness:
    """`nodes` at most per step; the inputs of as many are saved unless said otherwise."""
    decoder = load_target(folder, dtype=dtype, device=CPU, quantization=quantization)
    layout = decoder.layout(page_size=PAGE_SIZE, nodes=saved_nodes or nodes)
    backend = ReferenceAttention(page_size=PAGE_SIZE, dtype=decoder.dtype)
    pages = PageFamily(num_pages=1, device=CPU)
    cache = layout.open(CacheRoom(pages=pages, table_rows=rows + 1, backend=backend))
    attention = cache.attention
    planner, table, num_pages = planner_of(attention, nodes=nodes, pad=pad, rows=rows, reach=reach)
    pages.resize(num_pages)
    fill_with_noise(pages)  # rows begin with what others left
    return RowHarness(decoder, attention, planner, table, cache.pool)


def fill_with_noise(pages: PageFamily) -> None:
    """Noise in all pages and states; lengths of any size."""
    for tensor in pages.tensors:
        if tensor.is_floating_point():
            tensor.normal_()
        else:
            tensor.random_(0, 1 << 20)


def prompt(length, seed=0):
    return random.Random(seed).choices(range(VOCAB), k=length)
