"""The losses of one depth, and the overlap of two distributions."""

from collections.abc import Callable
from typing import Literal

import torch

LossKind = Literal["ce", "lk"]
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

_LK_DECAY = 3.0  # the weight of the cross-entropy is exp(-decay * mean acceptance)


def soft_cross_entropy(
    logits: torch.Tensor,  # [trained, draft_vocab]
    probabilities: torch.Tensor,  # [trained, draft_vocab] the target's; the rest lies outside
) -> torch.Tensor:  # [trained]
    """Cross-entropy with the target's distribution over the tokens that the head can propose."""
    logits, known = logits.float(), probabilities.sum(-1).clamp_min(1e-9)
    return logits.logsumexp(-1) - (probabilities * logits).sum(-1) / known


def lk_loss(
    logits: torch.Tensor,  # [trained, draft_vocab]
    probabilities: torch.Tensor,  # [trained, draft_vocab]
) -> torch.Tensor:  # [trained]
    """The LK loss: cross-entropy while acceptance is low, then the share of rejected drafts."""
    accepted = overlap(logits, probabilities)
    blend = torch.exp(-_LK_DECAY * accepted.detach().mean())
    return blend * soft_cross_entropy(logits, probabilities) + (1 - blend) * (1 - accepted)


def overlap(
    logits: torch.Tensor,  # [trained, draft_vocab]
    probabilities: torch.Tensor,  # [trained, draft_vocab]
) -> torch.Tensor:  # [trained]
    """Chance that the best chain rule accepts a draft at temperature 1: the sum of min(p, q)."""
    return torch.minimum(logits.float().softmax(-1), probabilities).sum(-1)


LOSSES: dict[LossKind, Loss] = {"ce": soft_cross_entropy, "lk": lk_loss}
