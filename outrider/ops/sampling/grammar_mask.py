"""Tokens that a mask does not allow are ruled out, before anything else happens to the logits."""

import math

import torch


def mask_(
    logits: torch.Tensor,  # [n, vocab] of any float; changed in place
    bits: torch.Tensor,  # [n, words] int32; bit t % 32 of word t // 32 allows token t
) -> None:
    """Set the logits of all tokens that are not allowed to minus infinity."""
    if logits.is_cuda:
        from outrider.ops.sampling.grammar_mask_triton import (
            mask_tokens,  # a CPU installation has no Triton
        )

        mask_tokens(logits, bits)
        return
    shifts = torch.arange(32, dtype=torch.int32, device=bits.device)
    is_allowed = (bits[:, :, None] >> shifts) & 1  # [n, words, 32]
    is_banned = is_allowed.flatten(1)[:, : logits.shape[1]] == 0
    logits.masked_fill_(is_banned, -math.inf)
