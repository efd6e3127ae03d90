"""What a drafter proposes: the tokens most likely to be the target's, given the noise to come."""

import torch

from outrider.ops.sampling.sampling_columns import NoNoise
from outrider.ops.sampling.top_tokens import TopTokens, top_tokens
from outrider.sampling.sampling_table import SamplingTable


def likely_tokens(
    logits: torch.Tensor,  # [n, draft_vocab]
    target_ids: torch.Tensor,  # [draft_vocab] int64, ascending
    topk: int,
) -> TopTokens:
    """The tokens that greedy rows most likely choose."""
    return top_tokens(logits, target_ids, topk, NoNoise(unread=target_ids))


def likely_samples(
    logits: torch.Tensor,  # [n, draft_vocab]
    target_ids: torch.Tensor,  # [draft_vocab] int64, ascending
    topk: int,
    *,
    table: SamplingTable,
    rows: torch.Tensor,  # [n] int64 into the table
    positions: torch.Tensor,  # [n] int64 absolute position of the token that is drafted
) -> TopTokens:
    """The tokens that the target most likely samples.

    The noise is the target's own and known in advance, so the drafter agrees on a sample as often
    as on an argmax.
    """
    return top_tokens(logits, target_ids, topk, table.noise(rows, positions))
