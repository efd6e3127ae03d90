"""A tiny DeepSeek-V4 that keeps every branch, and a decoder of it on a small device of its own."""

import random
from functools import cache
from pathlib import Path

import torch
from transformers import DeepseekV4Config, DeepseekV4ForCausalLM

from outrider.models.deepseek_v4.compressed_cache import CompressedPool
from outrider.models.target import load_target
from support.row_harness import CPU, PAGE_SIZE, RowHarness, planner_of

VOCAB, WINDOW = 67, 8
S, C, H = "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "moe_intermediate_size": 16,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "head_dim": 16,
    "qk_rope_head_dim": 8,
    "q_lora_rank": 24,
    "o_groups": 2,
    "o_lora_rank": 12,
    "num_experts_per_tok": 2,
    "n_routed_experts": 6,
    "sliding_window": WINDOW,
    # Enough heads that no score is nothing: of equal entries transformers may take any.
    "index_n_heads": 16,
    "index_head_dim": 12,
    "index_topk": 3,
    "hc_mult": 2,
    "hc_sinkhorn_iters": 5,
    "layer_types": [S, C, H, C, S],
    "compress_rates": {C: 4, H: 16},
    "mlp_layer_types": ["hash_moe", "hash_moe", "moe", "moe", "moe"],
    "max_position_embeddings": 256,
    "swiglu_limit": 0.7,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "rope_parameters": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "beta_fast": 32,
        "beta_slow": 1,
    },
}


def tiny_v4(*, seed: int = 0, **sizes) -> DeepseekV4ForCausalLM:
    """Random weights, large enough that greedy and sampled texts wander."""
    torch.manual_seed(seed)
    model = DeepseekV4ForCausalLM(DeepseekV4Config(**SIZES | sizes)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(0.0, 0.35)
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
        for name, buffer in model.named_buffers():
            if name.endswith("tid2eid"):
                buffer.copy_(torch.rand(VOCAB, SIZES["n_routed_experts"]).topk(2).indices)
            elif name.endswith("e_score_correction_bias"):
                buffer.normal_(0.0, 0.5)
    return model


@cache
def saved_v4(folder: Path) -> DeepseekV4ForCausalLM:
    """The model, saved once per folder the way its users save it."""
    model = tiny_v4()
    model.save_pretrained(folder)
    return model


def expected_logits(model, tokens):
    """Logits after every token, from one run of the whole text."""
    with torch.inference_mode():
        return model(torch.tensor([tokens])).logits[0]


def harness_of(folder: Path, *, pad=1, nodes=1, ring_nodes=None, rows=4, reach=128) -> RowHarness:
    """`nodes` at most per step; ring buffers are for as many unless said otherwise."""
    decoder = load_target(folder, dtype="float32", device=CPU)
    layout = decoder.layout(page_size=PAGE_SIZE, nodes=ring_nodes or nodes)
    attention = layout.attention()
    planner, table, num_pages = planner_of(attention, nodes=nodes, pad=pad, rows=rows, reach=reach)
    pool = CompressedPool(layout, table_rows=rows + 1, num_pages=num_pages, device=CPU)
    return RowHarness(decoder, attention, planner, table, pool)


def prompt(length, seed=0):
    return random.Random(seed).choices(range(VOCAB), k=length)
