"""Masks of grammars, as in `grammar_mask.py`, in one launch."""
# Triton reads kernels as source; it has no types for them.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from typing import Any

import torch
import triton
import triton.language as tl

from outrider.ops import dependent_launch as overlap

_BLOCK = 4096  # tokens of a program: few enough that one row occupies many multiprocessors


@triton.jit(do_not_specialize=["vocab", "num_words"])
def _mask_kernel(
    logits,
    bits,
    vocab,
    num_words,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_token = token < vocab
    overlap.begin(PDL)
    word = tl.load(bits + row * num_words + token // 32, mask=is_token, other=-1)
    is_banned = ((word >> (token % 32)) & 1) == 0
    # Logits are written, never read.
    banned = tl.full([BLOCK], float("-inf"), tl.float32).to(logits.dtype.element_ty)
    tl.store(logits + row * vocab + token, banned, mask=is_token & is_banned)


def mask_tokens_triton_(
    logits: torch.Tensor,  # [n, vocab] of any float, contiguous; changed in place
    bits: torch.Tensor,  # [n, words] int32, contiguous
) -> None:
    """`mask_tokens_` in one launch."""
    num_rows, vocab = logits.shape
    if not num_rows:
        return
    assert logits.is_contiguous(), "rows of logits lie one after another"
    kernel: Any = _mask_kernel[(num_rows, triton.cdiv(vocab, _BLOCK))]
    kernel(
        logits,
        bits,
        vocab,
        bits.shape[1],
        BLOCK=_BLOCK,
        num_warps=4,
        PDL=overlap.is_on(logits),
        **overlap.options(logits),
    )
