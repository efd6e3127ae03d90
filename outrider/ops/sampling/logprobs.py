"""Log-probabilities of the model itself, before logits processing."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobTensors:
    """What `TokenLogprobs` reports, still on the device."""

    chosen: torch.Tensor  # [n] float32
    rank: torch.Tensor  # [n] int64, 1 is the most likely token
    top_ids: torch.Tensor  # [n, top] int64, most likely first
    top_values: torch.Tensor  # [n, top] float32
    named_values: torch.Tensor  # [n, named] float32


def logprobs_of(
    logits: torch.Tensor,  # [n, vocab] of any float
    tokens: torch.Tensor,  # [n] int64
    named: torch.Tensor,  # [n, named] int64
    top: int,
) -> LogprobTensors:
    """Log-probability and rank of the chosen tokens, the `top` most likely ones and those named."""
    if not logits.shape[0]:
        return _no_logprobs(tokens, named, top)
    total, rank = total_and_rank(logits, tokens)
    chosen = logits.gather(1, tokens[:, None]).squeeze(1).float()  # [n]
    values, ids = _most_likely(logits, top)
    return LogprobTensors(
        chosen=chosen - total,
        rank=rank,
        top_ids=ids,
        top_values=values.float() - total[:, None],
        named_values=logits.gather(1, named).float() - total[:, None],
    )


def _no_logprobs(tokens: torch.Tensor, named: torch.Tensor, top: int) -> LogprobTensors:
    """The log-probabilities of no token, which most steps report: a few operations, not 30."""
    reals = tokens.new_empty(0, dtype=torch.float32)
    return LogprobTensors(
        chosen=reals,
        rank=tokens,
        top_ids=tokens.new_empty(0, top),
        top_values=reals.view(0, top),
        named_values=reals.view(0, named.shape[1]),
    )


def joined_logprobs(parts: Sequence[LogprobTensors]) -> LogprobTensors:
    """Several parts, one after another."""
    if len(parts) == 1:
        return parts[0]
    return LogprobTensors(
        chosen=torch.cat([part.chosen for part in parts]),
        rank=torch.cat([part.rank for part in parts]),
        top_ids=torch.cat([part.top_ids for part in parts]),
        top_values=torch.cat([part.top_values for part in parts]),
        named_values=torch.cat([part.named_values for part in parts]),
    )


def _most_likely(
    logits: torch.Tensor,  # [n, vocab]
    top: int,
) -> tuple[torch.Tensor, torch.Tensor]:  # [n, top] values and ids
    """The largest logits, best first; -inf where the vocabulary has fewer than `top` tokens."""
    values, ids = logits.topk(min(top, logits.shape[1]), dim=1)
    missing = (0, top - values.shape[1])
    return F.pad(values, missing, value=float("-inf")), F.pad(ids, missing)


def total_and_rank(
    logits: torch.Tensor,  # [n, vocab] of any float, unit stride along the vocabulary
    tokens: torch.Tensor,  # [n] int64
) -> tuple[torch.Tensor, torch.Tensor]:  # [n] float32, [n] int64
    """The log of each row's total mass, and the rank of its token; 1 is the most likely."""
    if logits.is_cuda and logits.shape[0]:
        from outrider.ops.sampling.logprobs_triton import total_and_rank_triton

        return total_and_rank_triton(logits, tokens)
    return total_and_rank_reference(logits, tokens)


def total_and_rank_reference(
    logits: torch.Tensor,  # [n, vocab]
    tokens: torch.Tensor,  # [n]
) -> tuple[torch.Tensor, torch.Tensor]:  # [n] float32, [n] int64
    """The same in plain torch."""
    logits = logits.float()
    chosen = logits.gather(1, tokens[:, None])  # [n, 1]
    # Threads share the sum of a single row, which changes its bits; they do not share that of two.
    several = torch.cat([logits, logits]) if len(logits) == 1 else logits
    return several.logsumexp(1)[: len(logits)], (logits > chosen).sum(1) + 1
