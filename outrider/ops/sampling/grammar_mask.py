"""Tokens that a grammar does not allow get a logit of minus infinity."""

import math

import torch


def mask_tokens_(
    logits: torch.Tensor,  # [n, vocab] of any float, contiguous; changed in place
    bits: torch.Tensor,  # [n, words] int32; bit t % 32 of word t // 32 allows token t
) -> None:
    """Set the logits of all tokens that are not allowed to minus infinity."""
    if logits.is_cuda:
        from outrider.ops.sampling.grammar_mask_triton import mask_tokens_triton_

        mask_tokens_triton_(logits, bits)
        return
    mask_tokens_reference_(logits, bits)


def mask_tokens_reference_(
    logits: torch.Tensor,  # [n, vocab]
    bits: torch.Tensor,  # [n, words]
) -> None:
    """The same in plain torch."""
    shifts = torch.arange(32, dtype=torch.int32, device=bits.device)
    is_allowed = (bits[:, :, None] >> shifts) & 1  # [n, words, 32]
    is_banned = is_allowed.flatten(1)[:, : logits.shape[1]] == 0
    logits.masked_fill_(is_banned, -math.inf)
