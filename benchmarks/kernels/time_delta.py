"""Times the gated delta rule of prompts: token after token, and by blocks at several tiles.

Run on a GPU: python -m benchmarks.kernels.time_delta [8192]
"""

import itertools
import sys
from dataclasses import dataclass
from functools import partial

import torch

from benchmarks.kernels.graph_clock import graph_us, random_bf16
from outrider.ops.recurrent.delta_chunk_triton import DeltaTile, run_chunks
from outrider.ops.recurrent.delta_rule import DeltaRule
from outrider.ops.recurrent.delta_rule_triton import run_tokens
from outrider.ops.recurrent.delta_sizes import DeltaSizes
from outrider.ops.recurrent.recurrent_rows import NEW_TEXT, RecurrentState, StateRows

SIZES = DeltaSizes(key_heads=16, value_heads=32, key_dim=128, value_dim=128)  # of Qwen3-Next
CHUNKS = (1, 4)  # that share the tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Operands:
    """The inputs of the rule for chunks of equal length."""

    qkv: torch.Tensor  # [tokens, qkv]
    gates: torch.Tensor  # [tokens, 2 * value_heads]
    layer: RecurrentState
    states: StateRows
    rule: DeltaRule
    out: torch.Tensor  # [tokens, value_heads, value_dim]

    @property
    def chunk_tokens(self) -> int:
        return self.qkv.shape[0] // self.states.rows.shape[0]

    def run_token_by_token(self) -> None:
        run_tokens(self.qkv, self.gates, self.layer, self.states, self.rule, self.out, num_rows=0)

    def run_in_blocks(self, tile: DeltaTile) -> None:
        run_chunks(
            self.qkv,
            self.gates,
            self.layer,
            self.states,
            self.rule,
            self.out,
            width=self.chunk_tokens,
            tile=tile,
        )


def make_operands(num_tokens: int, num_chunks: int) -> Operands:
    each, heads = num_tokens // num_chunks, SIZES.value_heads
    row = torch.arange(num_chunks, device="cuda")
    state = torch.zeros(num_chunks + 1, heads, SIZES.key_dim, SIZES.value_dim, device="cuda")
    return Operands(
        qkv=random_bf16(num_tokens, SIZES.qkv),
        gates=random_bf16(num_tokens, 2 * heads),
        layer=RecurrentState(
            window=random_bf16(0, SIZES.qkv),
            node_inputs=random_bf16(num_chunks + 1, 1, SIZES.node_inputs).zero_(),
            state=state,
        ),
        states=StateRows(
            rows=row + 1,
            accepted_counts=torch.full_like(row, NEW_TEXT),
            firsts=row * each,
            counts=torch.full_like(row, each),
        ),
        rule=DeltaRule(
            sizes=SIZES,
            conv_weight=torch.zeros(0, device="cuda"),
            decay_scale=-torch.rand(heads, device="cuda"),
            dt_bias=torch.randn(heads, device="cuda"),
            is_fixed=False,
        ),
        out=random_bf16(num_tokens, heads, SIZES.value_dim),
    )


def main() -> None:
    num_tokens = int((sys.argv[1:] or ["8192"])[0])
    for num_chunks in CHUNKS:
        given = make_operands(num_tokens, num_chunks)
        us = graph_us(given.run_token_by_token, repeat=3)
        print(f"{num_chunks} chunks of {given.chunk_tokens}: one by one {us:.0f} us", flush=True)
        for columns, warps, stages in itertools.product((16, 32, 64), (2, 4, 8), (1, 2, 3)):
            tile = DeltaTile(columns=columns, warps=warps, stages=stages)
            print(f"    {graph_us(partial(given.run_in_blocks, tile)):.0f} us {tile}", flush=True)


if __name__ == "__main__":
    main()
