"""Log of the total mass and rank of a chosen token, as in `logprobs.py`, without a float32 copy.

One program reads a row in fixed blocks, so the bits of a row do not depend on the other rows.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from typing import Any

import torch
import triton
import triton.language as tl

from outrider.ops import dependent_launch as overlap

_BLOCK = 4096


@triton.jit
def _total_kernel(
    logits, tokens, total, rank, vocab, stride, BLOCK: tl.constexpr, PDL: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    channel = tl.arange(0, BLOCK)
    overlap.begin(PDL)
    chosen = tl.load(logits + row * stride + tl.load(tokens + row)).to(tl.float32)
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    above = tl.zeros([BLOCK], tl.int64)
    for first in range(0, vocab, BLOCK):
        inside = first + channel < vocab
        value = tl.load(logits + row * stride + first + channel, mask=inside, other=float("-inf"))
        value = value.to(tl.float32)
        best = tl.maximum(best, value)
        above += (value > chosen).to(tl.int64)
    most = tl.max(best, 0)
    mass = tl.zeros([BLOCK], tl.float32)
    for first in range(0, vocab, BLOCK):
        inside = first + channel < vocab
        value = tl.load(logits + row * stride + first + channel, mask=inside, other=float("-inf"))
        mass += tl.exp(value.to(tl.float32) - most)
    tl.store(total + row, tl.log(tl.sum(mass, 0)) + most)
    tl.store(rank + row, tl.sum(above, 0) + 1)


def total_and_rank_triton(
    logits: torch.Tensor,  # [n, vocab], unit stride along the vocabulary
    tokens: torch.Tensor,  # [n] int64
) -> tuple[torch.Tensor, torch.Tensor]:  # [n] float32, [n] int64
    """`total_and_rank` in one launch; there is at least one row."""
    num_rows, vocab = logits.shape
    total = torch.empty(num_rows, dtype=torch.float32, device=logits.device)
    rank = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    kernel: Any = _total_kernel[(num_rows,)]
    kernel(
        logits,
        tokens,
        total,
        rank,
        vocab,
        logits.stride(0),
        BLOCK=_BLOCK,
        PDL=overlap.is_on(logits),
        num_warps=8,
        **overlap.options(logits),
    )
    return total, rank
