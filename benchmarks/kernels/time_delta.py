"""Times the gated delta rule of prompts: token after token, and by blocks at several tiles.

Run on a GPU: PYTHONPATH=. python -m benchmarks.kernels.time_delta [8192]
"""

import itertools
import sys

import torch

from benchmarks.kernels.graph_clock import graph_us
from outrider.ops.recurrent import delta_chunk_triton as delta_blocks
from outrider.ops.recurrent import delta_rule_triton as delta

HEADS, KEY_HEADS, DIM = 32, 16, 128  # of Qwen3-Next
CHUNKS = (1, 4)  # that share the tokens


def operands(num_tokens: int, num_chunks: int):
    bf16 = {"device": "cuda", "dtype": torch.bfloat16}
    qkv = torch.randn(num_tokens, 2 * KEY_HEADS * DIM + HEADS * DIM, **bf16)
    gates = torch.randn(num_tokens, 2 * HEADS, **bf16)
    state = torch.zeros(num_chunks + 1, HEADS, DIM, DIM, device="cuda")
    node_inputs = torch.zeros(num_chunks + 1, 1, KEY_HEADS * DIM + HEADS * (DIM + 2), **bf16)
    each = num_tokens // num_chunks
    row = torch.arange(num_chunks, device="cuda")
    spans = (row + 1, torch.full_like(row, -1), row * each, torch.full_like(row, each))
    weights = (-torch.rand(HEADS, device="cuda"), torch.randn(HEADS, device="cuda"))
    out = torch.empty(num_tokens, HEADS, DIM, **bf16)
    return (qkv, gates, state, node_inputs, spans, weights, out), each


def main() -> None:
    num_tokens = int((sys.argv[1:] or ["8192"])[0])
    numbers = {"key_heads": KEY_HEADS, "eps": 1e-6}
    for num_chunks in CHUNKS:
        given, each = operands(num_tokens, num_chunks)
        us = graph_us(
            lambda given=given: delta.gated_delta_rule(*given, num_rows=0, **numbers), repeat=3
        )
        print(f"{num_chunks} chunks of {each}: one by one {us:.0f} us", flush=True)
        for columns, warps, stages in itertools.product((16, 32, 64), (2, 4, 8), (1, 2, 3)):
            tile = delta_blocks.DeltaTile(columns=columns, warps=warps, stages=stages)

            def run(given=given, each=each, tile=tile):
                delta_blocks.pass_chunks(*given, width=each, tile=tile, **numbers)

            print(f"    {graph_us(run):.0f} us {tile}", flush=True)


if __name__ == "__main__":
    main()
