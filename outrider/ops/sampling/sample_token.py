"""The last part of sampling: filter, add noise, take the maximum."""

import math
from dataclasses import dataclass

import torch

from outrider.ops.sampling.gumbel_noise import gumbel
from outrider.ops.sampling.sampling_columns import NoNoise, RowNoise, column_of

# Faults of a row: its token is any valid id.
NOT_FINITE = 1  # the best score is NaN or infinity
NOTHING_LEFT = 2  # all scores are minus infinity


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledTokens:
    """The token of each row, and whether it may be used."""

    tokens: torch.Tensor  # [n] int64
    faults: torch.Tensor  # [n] int64 NOT_FINITE, NOTHING_LEFT, or 0


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
    is_fault = (best - best) != 0  # NaN
    return SampledTokens(tokens=tokens, faults=is_fault.long() + (best == -math.inf))
