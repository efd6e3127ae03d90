"""Logits as a model defines them, from the product with its head."""

import torch

from outrider.ops.attention.attention_rule import NO_CAP
from outrider.ops.fixed_activations import soft_cap


def scale_logits(
    scores: torch.Tensor,  # [n, vocab]
    *,
    factor: float,
    cap: float,  # NO_CAP: none
) -> torch.Tensor:  # [n, vocab]
    if factor != 1.0:
        scores = scores * factor
    return soft_cap(scores, cap) if cap > NO_CAP else scores
