"""The losses of one depth, and the overlap of two distributions."""

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F

LossKind = Literal["ce", "lk"]
Loss = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

_LK_DECAY = 3.0  # the weight of the cross-entropy is exp(-decay * mean acceptance)


def cross_entropy_loss(
    logits: torch.Tensor,  # [trained, draft_vocab]
    probabilities: torch.Tensor,  # [teacher, draft_vocab] the target's; the rest lies outside
    index: torch.Tensor,  # [trained] row of `probabilities`; read here, so no copy is stored
) -> torch.Tensor:  # [trained]
    """Cross-entropy with the target's distribution over the tokens that the head can propose."""
    return soft_cross_entropy(logits, probabilities.index_select(0, index))


def lk_loss(
    logits: torch.Tensor,  # [trained, draft_vocab]
    probabilities: torch.Tensor,  # [teacher, draft_vocab]
    index: torch.Tensor,  # [trained]
) -> torch.Tensor:  # [trained]
    """The LK loss: cross-entropy while acceptance is low, then the share of rejected drafts."""
    chosen = probabilities.index_select(0, index)
    accepted = overlap(logits, chosen)
    blend = torch.exp(-_LK_DECAY * accepted.detach().mean())
    return blend * soft_cross_entropy(logits, chosen) + (1 - blend) * (1 - accepted)


def confidence_loss(
    confidence: torch.Tensor,  # [trained, 1] logits
    logits: torch.Tensor,  # [trained, draft_vocab] of the drafts that it is about; not trained here
    probabilities: torch.Tensor,  # [teacher, draft_vocab]
    index: torch.Tensor,  # [trained]
) -> torch.Tensor:  # [trained]
    """Binary cross-entropy with the chance that a draft is accepted, given those before it."""
    accepted = overlap(logits.detach(), probabilities.index_select(0, index))[:, None]
    return F.binary_cross_entropy_with_logits(confidence, accepted, reduction="none").squeeze(1)


def soft_cross_entropy(
    logits: torch.Tensor,  # [trained, draft_vocab]
    probabilities: torch.Tensor,  # [trained, draft_vocab]
) -> torch.Tensor:  # [trained]
    """Cross-entropy with a distribution whose tokens need not all be among the logits."""
    logits, probabilities = logits.float(), probabilities.float()
    known = probabilities.sum(-1).clamp_min(1e-9)
    return logits.logsumexp(-1) - (probabilities * logits).sum(-1) / known


def overlap(
    logits: torch.Tensor,  # [trained, draft_vocab]
    probabilities: torch.Tensor,  # [trained, draft_vocab]
) -> torch.Tensor:  # [trained]
    """Chance that the best chain rule accepts a draft at temperature 1: the sum of min(p, q)."""
    return torch.minimum(logits.float().softmax(-1), probabilities.float()).sum(-1)


LOSSES: dict[LossKind, Loss] = {"ce": cross_entropy_loss, "lk": lk_loss}
