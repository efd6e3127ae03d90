"""The most likely tokens of draft logits and their log-probabilities, noise included."""

from dataclasses import dataclass

import torch

from outrider.ops.compiled.why_not_compiled import is_compiled
from outrider.ops.sampling.gumbel_noise import gumbel_at
from outrider.ops.sampling.sampling_columns import NoNoise, RowNoise

_COMPILED = "outrider.ops.compiled.best_tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopTokens:
    """The best tokens after each hidden state, most likely first."""

    logprobs: torch.Tensor  # [n, topk] float32
    tokens: torch.Tensor  # [n, topk] int64, ids of the target


def top_tokens(
    logits: torch.Tensor,  # [n, draft_vocab] of any float, unit stride along the vocabulary
    target_ids: torch.Tensor,  # [draft_vocab] int64, ascending: the target's id of each column
    topk: int,
    noise: RowNoise | NoNoise,
) -> TopTokens:
    """The best tokens of each row, most likely first."""
    if logits.is_cuda:
        from outrider.ops.sampling.top_tokens_triton import top_tokens_triton

        return top_tokens_triton(logits, target_ids, topk, noise)
    if logits.dtype == torch.float32 and is_compiled(logits, _COMPILED):
        from outrider.ops.sampling.top_tokens_compiled import best_tokens_compiled

        return best_tokens_compiled(with_noise(logits, target_ids, noise), target_ids, topk)
    return top_tokens_reference(logits, target_ids, topk, noise)


def top_tokens_reference(
    logits: torch.Tensor,  # [n, draft_vocab]
    target_ids: torch.Tensor,  # [draft_vocab]
    topk: int,
    noise: RowNoise | NoNoise,
) -> TopTokens:
    """The same in plain torch."""
    logprobs = with_noise(logits, target_ids, noise).float().log_softmax(-1)
    # `max` returns the first of equals; `topk` promises no order among equals.
    values, index = logprobs.max(-1, keepdim=True) if topk == 1 else logprobs.topk(topk, dim=-1)
    return TopTokens(logprobs=values, tokens=target_ids[index])


def with_noise(
    logits: torch.Tensor, target_ids: torch.Tensor, noise: RowNoise | NoNoise
) -> torch.Tensor:  # [n, draft_vocab]
    """Logits divided by the temperature, plus the target's own noise. Greedy rows get neither."""
    if isinstance(noise, NoNoise):
        return logits
    rows = noise.rows
    temperature = noise.temperatures.index_select(0, rows)[:, None]  # [n, 1]
    seeds = noise.seeds.index_select(0, rows)
    drawn = gumbel_at(seeds, noise.positions, target_ids.expand(rows.shape[0], -1))
    scale = torch.where(temperature > 0, temperature, 1.0)
    return (logits + drawn.mul_(temperature)) / scale
