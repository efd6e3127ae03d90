"""Sampling: the token is a function of (logits, seed, position).

In order: the grammar's mask (applied by the program before), allowed tokens, penalties, bias, bans,
bad words, thinking budgets, temperature, top-k, top-p, min-p; then noise, then argmax.
"""

import torch

from outrider.distributed.rank_group import RankGroup
from outrider.models.layers.reduced_layers import OwnLogits
from outrider.ops.sampling.bad_words import ban_words_
from outrider.ops.sampling.grammar_mask import mask_tokens_
from outrider.ops.sampling.logit_bias import add_bias_
from outrider.ops.sampling.penalties import penalise
from outrider.ops.sampling.sample_token import SampledTokens, best_keys, read_keys, sample_token
from outrider.ops.sampling.sampling_columns import NoNoise, RowNoise
from outrider.ops.sampling.thinking_end import force_end_
from outrider.ops.sampling.top_k_top_p import filter_floors
from outrider.sampling.sampling_table import SamplingTable
from outrider.step.shape import SamplingFlags


def sample_tokens(
    logits: torch.Tensor,  # [n, vocab] float32 on a CPU, any float on a GPU; may be overwritten
    table: SamplingTable,
    rows: torch.Tensor,  # [n] int64
    positions: torch.Tensor,  # [n] int64 absolute position of the token being chosen
    path: torch.Tensor,  # [n, depth] int64 tokens from below node 0 to the node, padded with -1
    sampling_flags: SamplingFlags,
) -> SampledTokens:
    """The token of each row: argmax of z / temperature + g, the lowest id of equal scores.

    Computed as argmax of z + temperature * g, which is the same and needs no case for 0. Only
    penalties, bias and bad words copy the vocabulary, and only once.
    """
    scores = logits
    if sampling_flags.allowed:
        mask_tokens_(scores, table.allowed.index_select(0, rows))
    if sampling_flags.penalties:
        scores = penalise(scores, table.penalties, rows, path)
    if sampling_flags.bias:
        scores = scores.float().contiguous()
        add_bias_(scores, table.edits, rows, positions)
    if sampling_flags.bad_words:
        scores = scores.float().contiguous()
        ban_words_(scores, table.bad_words, rows, path)
    if sampling_flags.thinking:
        scores = scores.float().contiguous()
        force_end_(scores, table.thinking, rows, positions, path)
    no_floors = table.filters.top_p[:0]
    floors = filter_floors(scores, table.filters, rows) if sampling_flags.filters else no_floors
    return sample_token(scores, _noise(table, rows, positions, sampling_flags), floors)


def sample_shared_tokens(
    own: OwnLogits,
    table: SamplingTable,
    rows: torch.Tensor,  # [n] int64
    positions: torch.Tensor,  # [n] int64
    sampling_flags: SamplingFlags,  # plain ones
    ranks: RankGroup,
) -> SampledTokens:
    """The same tokens if every rank has the logits of some tokens: the best of all ranks' best."""
    assert sampling_flags.is_plain, "other sampling reads all logits of a row"
    noise = _noise(table, rows, positions, sampling_flags)
    keys = best_keys(own.scores, noise, first=own.first)
    ranks.take_largest_(keys)
    return read_keys(keys)


def _noise(
    table: SamplingTable,
    rows: torch.Tensor,
    positions: torch.Tensor,
    sampling_flags: SamplingFlags,
) -> RowNoise | NoNoise:
    return table.noise(rows, positions) if sampling_flags.noise else NoNoise(unread=rows)
