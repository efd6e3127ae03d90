"""What a head is trained to do at one depth, and how well it does it."""

from collections.abc import Callable
from typing import Literal

import torch

LossKind = Literal["ce", "lk"]
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

_LK_DECAY = 3.0  # how fast the acceptance itself takes over as it rises


def soft_cross_entropy(
    logits: torch.Tensor,  # [trained, draft_vocab]
    probabilities: torch.Tensor,  # [trained, draft_vocab] the target's, shares of its vocabulary
) -> torch.Tensor:  # [trained]
    """Against the target's law among the tokens that the head can propose."""
    logits, known = logits.float(), probabilities.sum(-1).clamp_min(1e-9)
    return logits.logsumexp(-1) - (probabilities * logits).sum(-1) / known


def lk_loss(
    logits: torch.Tensor,  # [trained, draft_vocab]
    probabilities: torch.Tensor,  # [trained, draft_vocab]
) -> torch.Tensor:  # [trained]
    """The LK loss: cross-entropy while little is kept, then the share that is not kept."""
    kept = overlap(logits, probabilities)
    blend = torch.exp(-_LK_DECAY * kept.detach().mean())
    return blend * soft_cross_entropy(logits, probabilities) + (1 - blend) * (1 - kept)


def overlap(
    logits: torch.Tensor,  # [trained, draft_vocab]
    probabilities: torch.Tensor,  # [trained, draft_vocab]
) -> torch.Tensor:  # [trained]
    """How often the best chain rule keeps a draft at temperature 1: the sum of min(p, q)."""
    return torch.minimum(logits.float().softmax(-1), probabilities).sum(-1)


LOSSES: dict[LossKind, Loss] = {"ce": soft_cross_entropy, "lk": lk_loss}
