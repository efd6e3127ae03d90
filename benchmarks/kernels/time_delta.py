"""Times the gated delta rule of prompts: token after token, and by blocks at several tiles.

Run on a GPU: PYTHONPATH=. python -m benchmarks.kernels.time_delta [8192]
"""

import itertools
import sys

import torch

from benchmarks.kernels.graph_clock import graph_us
from outrider.ops.recurrent.delta_chunk_triton import DeltaTile, run_chunks
from outrider.ops.recurrent.delta_rule import DeltaRule
from outrider.ops.recurrent.delta_rule_triton import run_tokens
from outrider.ops.recurrent.delta_sizes import DeltaSizes
from outrider.ops.recurrent.recurrent_rows import NEW_TEXT, RecurrentState, StateRows

HEADS, KEY_HEADS, DIM = 32, 16, 128  # of Qwen3-Next
CHUNKS = (1, 4)  # that share the tokens


def operands(num_tokens: int, num_chunks: int):
    bf16 = {"device": "cuda", "dtype": torch.bfloat16}
    sizes = DeltaSizes(key_heads=KEY_HEADS, value_heads=HEADS, key_dim=DIM, value_dim=DIM)
    qkv = torch.randn(num_tokens, sizes.qkv, **bf16)
    gates = torch.randn(num_tokens, 2 * HEADS, **bf16)
    layer = RecurrentState(
        window=torch.zeros(0, **bf16),
        node_inputs=torch.zeros(num_chunks + 1, 1, sizes.node_inputs, **bf16),
        state=torch.zeros(num_chunks + 1, HEADS, DIM, DIM, device="cuda"),
    )
    each = num_tokens // num_chunks
    row = torch.arange(num_chunks, device="cuda")
    states = StateRows(
        rows=row + 1,
        accepted_counts=torch.full_like(row, NEW_TEXT),
        firsts=row * each,
        counts=torch.full_like(row, each),
    )
    rule = DeltaRule(
        sizes=sizes,
        conv_weight=torch.zeros(0, device="cuda"),
        decay_scale=-torch.rand(HEADS, device="cuda"),
        dt_bias=torch.randn(HEADS, device="cuda"),
        is_fixed=False,
    )
    out = torch.empty(num_tokens, HEADS, DIM, **bf16)
    return (qkv, gates, layer, states, rule, out), each


def main() -> None:
    num_tokens = int((sys.argv[1:] or ["8192"])[0])
    for num_chunks in CHUNKS:
        given, each = operands(num_tokens, num_chunks)
        us = graph_us(lambda given=given: run_tokens(*given, num_rows=0), repeat=3)
        print(f"{num_chunks} chunks of {each}: one by one {us:.0f} us", flush=True)
        for columns, warps, stages in itertools.product((16, 32, 64), (2, 4, 8), (1, 2, 3)):
            tile = DeltaTile(columns=columns, warps=warps, stages=stages)

            def run(given=given, each=each, tile=tile):
                run_chunks(*given, width=each, tile=tile)

            print(f"    {graph_us(run):.0f} us {tile}", flush=True)


if __name__ == "__main__":
    main()
