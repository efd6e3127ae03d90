"""Times the gated delta rule of prompts: token after token, and by blocks at several tiles.

Run on a GPU: python -m benchmarks.kernels.time_delta [8192]
"""

import itertools
import sys
from dataclasses import dataclass
from functools import partial

import torch

from benchmarks.kernels.graph_clock import graph_us, random_bf16
from outrider.ops.recurrent import delta_chunk_triton as delta_blocks
from outrider.ops.recurrent import delta_rule_triton as delta

HEADS, KEY_HEADS, DIM = 32, 16, 128  # of Qwen3-Next
EPS = 1e-6
CHUNKS = (1, 4)  # that share the tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Operands:
    """The inputs of the rule for chunks of equal length."""

    qkv: torch.Tensor  # [tokens, 2 * KEY_HEADS * DIM + HEADS * DIM]
    gates: torch.Tensor  # [tokens, 2 * HEADS]
    state: torch.Tensor  # [1 + chunks, HEADS, DIM, DIM] float32
    node_inputs: torch.Tensor  # [1 + chunks, 1, KEY_HEADS * DIM + HEADS * (DIM + 2)]
    spans: tuple[torch.Tensor, ...]  # rows, accepted counts, firsts, counts: [chunks]
    weights: tuple[torch.Tensor, torch.Tensor]  # [HEADS] each
    out: torch.Tensor  # [tokens, HEADS, DIM]
    chunk_tokens: int

    def run_token_by_token(self) -> None:
        delta.gated_delta_rule(
            self.qkv,
            self.gates,
            self.state,
            self.node_inputs,
            self.spans,
            self.weights,
            self.out,
            num_rows=0,
            key_heads=KEY_HEADS,
            eps=EPS,
        )

    def run_in_blocks(self, tile: delta_blocks.DeltaTile) -> None:
        delta_blocks.pass_chunks(
            self.qkv,
            self.gates,
            self.state,
            self.node_inputs,
            self.spans,
            self.weights,
            self.out,
            width=self.chunk_tokens,
            key_heads=KEY_HEADS,
            eps=EPS,
            tile=tile,
        )


def make_operands(num_tokens: int, num_chunks: int) -> Operands:
    each = num_tokens // num_chunks
    row = torch.arange(num_chunks, device="cuda")
    return Operands(
        qkv=random_bf16(num_tokens, 2 * KEY_HEADS * DIM + HEADS * DIM),
        gates=random_bf16(num_tokens, 2 * HEADS),
        state=torch.zeros(num_chunks + 1, HEADS, DIM, DIM, device="cuda"),
        node_inputs=random_bf16(num_chunks + 1, 1, KEY_HEADS * DIM + HEADS * (DIM + 2)).zero_(),
        spans=(row + 1, torch.full_like(row, -1), row * each, torch.full_like(row, each)),
        weights=(-torch.rand(HEADS, device="cuda"), torch.randn(HEADS, device="cuda")),
        out=random_bf16(num_tokens, HEADS, DIM),
        chunk_tokens=each,
    )


def main() -> None:
    num_tokens = int((sys.argv[1:] or ["8192"])[0])
    for num_chunks in CHUNKS:
        given = make_operands(num_tokens, num_chunks)
        us = graph_us(given.run_token_by_token, repeat=3)
        print(f"{num_chunks} chunks of {given.chunk_tokens}: one by one {us:.0f} us", flush=True)
        for columns, warps, stages in itertools.product((16, 32, 64), (2, 4, 8), (1, 2, 3)):
            tile = delta_blocks.DeltaTile(columns=columns, warps=warps, stages=stages)
            print(f"    {graph_us(partial(given.run_in_blocks, tile)):.0f} us {tile}", flush=True)


if __name__ == "__main__":
    main()
