"""What a drafter proposes: the tokens most likely to be the target's, given the noise to come."""

from dataclasses import dataclass

import torch

from outrider.ops.sampling.gumbel_noise import gumbel_at
from outrider.ops.sampling.sampling_columns import NoNoise
from outrider.sampling.fused_sampler import noise_of
from outrider.sampling.sampling_table import SamplingTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Likely:
    """The best tokens after each state, most likely first."""

    logprobs: torch.Tensor  # [n, topk] float32
    tokens: torch.Tensor  # [n, topk] int64, ids of the target


def likely_tokens(
    logits: torch.Tensor,  # [n, draft_vocab]
    target_ids: torch.Tensor,  # [draft_vocab] int64, ascending
    topk: int,
) -> Likely:
    """The most likely tokens of a law without noise."""
    if logits.is_cuda:
        return likely_tokens_fused(logits, target_ids, topk)
    law = logits.float().log_softmax(-1)
    # The maximum is the first of equals; of several tokens torch promises no order among equals.
    values, index = law.max(-1, keepdim=True) if topk == 1 else law.topk(topk, dim=-1)
    return Likely(logprobs=values, tokens=target_ids[index])


def likely_samples(
    logits: torch.Tensor,  # [n, draft_vocab]
    target_ids: torch.Tensor,  # [draft_vocab] int64, ascending
    topk: int,
    *,
    table: SamplingTable,
    rows: torch.Tensor,  # [n] int64 into the table
    positions: torch.Tensor,  # [n] int64 absolute position of the token that is guessed
) -> Likely:
    """The tokens most likely to be sampled by the target, whose noise is already known.

    The noise is the target's own, so the two agree on a sample as they do on an argmax.
    """
    if logits.is_cuda:
        return likely_samples_fused(
            logits, target_ids, topk, table=table, rows=rows, positions=positions
        )
    temperature = table.temperature.index_select(0, rows)[:, None]  # [n, 1]
    seeds = table.seed.index_select(0, rows)
    noise = gumbel_at(seeds, positions, target_ids.expand(rows.shape[0], -1))
    scale = torch.where(temperature > 0, temperature, 1.0)
    return likely_tokens((logits + noise.mul_(temperature)) / scale, target_ids, topk)


def likely_tokens_fused(
    logits: torch.Tensor,  # [n, draft_vocab] of any float
    target_ids: torch.Tensor,  # [draft_vocab] int64
    topk: int,
) -> Likely:
    """The same, the lower index first of equals."""
    from outrider.ops.sampling.draft_topk_triton import (
        rank_likely,  # a CPU installation has no Triton
    )

    logprobs, tokens = rank_likely(logits, target_ids, topk, NoNoise(unread=target_ids))
    return Likely(logprobs=logprobs, tokens=tokens)


def likely_samples_fused(
    logits: torch.Tensor,  # [n, draft_vocab] of any float
    target_ids: torch.Tensor,  # [draft_vocab] int64
    topk: int,
    *,
    table: SamplingTable,
    rows: torch.Tensor,  # [n] int64 into the table
    positions: torch.Tensor,  # [n] int64
) -> Likely:
    """The same, the lower index first of equals."""
    from outrider.ops.sampling.draft_topk_triton import rank_likely

    noise = noise_of(table, rows, positions)
    logprobs, tokens = rank_likely(logits, target_ids, topk, noise)
    return Likely(logprobs=logprobs, tokens=tokens)
