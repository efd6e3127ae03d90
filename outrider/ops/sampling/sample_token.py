"""The last part of sampling: filter, add noise, take the maximum."""

import math

import torch

from outrider.ops.sampling.gumbel_noise import gumbel
from outrider.ops.sampling.sampling_columns import NoNoise, RowNoise, column_of


def sample_token(
    scores: torch.Tensor,  # [n, vocab] of any float, unit stride along vocab; may be overwritten
    noise: RowNoise | NoNoise,
    floors: torch.Tensor,  # [n] float32, scores below are ruled out; [0] if nothing is filtered
) -> torch.Tensor:  # [n] int64
    """The id of the best score of each row, noise included; the lowest id of equal scores."""
    if scores.is_cuda:
        from outrider.ops.sampling.sample_token_triton import sample_token_triton

        return sample_token_triton(scores, noise, floors)
    return sample_token_reference(scores, noise, floors)


def sample_token_reference(
    scores: torch.Tensor,  # [n, vocab] float32, overwritten
    noise: RowNoise | NoNoise,
    floors: torch.Tensor,  # [n] or [0]
) -> torch.Tensor:  # [n] int64
    """The same in plain torch."""
    if floors.shape[0]:
        scores.masked_fill_(scores < floors[:, None], -math.inf)
    if isinstance(noise, RowNoise):
        seeds = noise.seeds.index_select(0, noise.rows)
        drawn = gumbel(seeds, noise.positions, scores.shape[1])
        scores.add_(drawn.mul_(column_of(noise.temperatures, noise.rows)))
    return scores.argmax(1)
