"""The last part of sampling: filter, add noise, take the maximum."""

import math
from dataclasses import dataclass

import torch

from outrider.ops.sampling.gumbel_noise import gumbel
from outrider.ops.sampling.sampling_columns import NoNoise, RowNoise, column_of


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledTokens:
    """The token of each row. If the best score is not finite, the token is any valid id: some of
    the scores are NaN or infinite, or all are minus infinity.
    """

    tokens: torch.Tensor  # [n] int64
    faults: torch.Tensor  # [n] int64 1 where the best score is not finite, else 0


def sample_token(
    scores: torch.Tensor,  # [n, vocab] of any float, unit stride along vocab; may be overwritten
    noise: RowNoise | NoNoise,
    floors: torch.Tensor,  # [n] float32, scores below are ruled out; [0] if nothing is filtered
) -> SampledTokens:
    """The id of the best score of each row, noise included; the lowest id of equal scores."""
    if scores.is_cuda:
        from outrider.ops.sampling.sample_token_triton import sample_token_triton

        return sample_token_triton(scores, noise, floors)
    return sample_token_reference(scores, noise, floors)


def sample_token_reference(
    scores: torch.Tensor,  # [n, vocab] float32, overwritten
    noise: RowNoise | NoNoise,
    floors: torch.Tensor,  # [n] or [0]
) -> SampledTokens:
    """The same in plain torch."""
    if floors.shape[0]:
        scores.masked_fill_(scores < floors[:, None], -math.inf)
    if isinstance(noise, RowNoise):
        seeds = noise.seeds.index_select(0, noise.rows)
        drawn = gumbel(seeds, noise.positions, scores.shape[1])
        scores.add_(drawn.mul_(column_of(noise.temperatures, noise.rows)))
    tokens = scores.argmax(1)  # NaN counts as the largest
    best = scores.gather(1, tokens[:, None]).squeeze(1)
    return SampledTokens(tokens=tokens, faults=(best - best).ne_(0).long())
