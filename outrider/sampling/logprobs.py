"""Log-probabilities of the model's own law, before any warp."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobTensors:
    """What `TokenLogprobs` reports, still on the device."""

    chosen: torch.Tensor  # [n] float32
    rank: torch.Tensor  # [n] int64, 1 is the most likely token
    top_ids: torch.Tensor  # [n, top] int64, most likely first
    top_values: torch.Tensor  # [n, top] float32


def logprobs_of(
    logits: torch.Tensor,  # [n, vocab] of any float
    tokens: torch.Tensor,  # [n] int64
    top: int,
) -> LogprobTensors:
    """Log-probability and rank of the chosen tokens, and the `top` most likely tokens."""
    logits = logits.float()
    total = logits.logsumexp(1, keepdim=True)  # [n, 1]
    chosen = logits.gather(1, tokens[:, None])  # [n, 1]
    values, ids = logits.topk(top, dim=1)
    return LogprobTensors(
        chosen=(chosen - total).squeeze(1),
        rank=(logits > chosen).sum(1) + 1,
        top_ids=ids,
        top_values=values - total,
    )
