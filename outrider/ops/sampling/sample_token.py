"""The last part of sampling: filter, add noise, take the maximum."""

import math
from dataclasses import dataclass

import torch

from outrider.ops.compiled.why_not_compiled import is_compiled
from outrider.ops.sampling.best_scores import best_scores
from outrider.ops.sampling.gumbel_noise import gumbel
from outrider.ops.sampling.sampling_columns import NoNoise, RowNoise, column_of

# Faults of a row: its token is any valid id.
NOT_FINITE = 1  # the best score is NaN or infinity
NOTHING_LEFT = 2  # all scores are minus infinity

_COMPILED = "outrider.ops.compiled.noisy_best_of_rows"
_LARGEST = 2**31 - 1
_LOWEST_KEY = -(2**63)  # below the key of every token


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
    if isinstance(noise, RowNoise) and scores.shape[1] and _has_compiled(scores):
        from outrider.ops.sampling.sample_token_compiled import noisy_best_compiled

        tokens, best = noisy_best_compiled(scores, noise, floors, 0)
        return SampledTokens(tokens=tokens, faults=_faults(best))
    return sample_token_reference(scores, noise, floors)


def best_keys(
    scores: torch.Tensor,  # [n, width] as in `sample_token`, of some neighbouring tokens
    noise: RowNoise | NoNoise,
    *,
    first: int,  # token of the first column
) -> torch.Tensor:  # [n] int64
    """The best score of each row, noise included, and its token, in one word.

    The largest word of all parts of a vocabulary is that of its best score: NaN counts as the
    largest, and of equal scores the lowest id wins, as in `sample_token`.
    """
    if not scores.shape[1]:
        return torch.full(scores.shape[:1], _LOWEST_KEY, device=scores.device)
    if scores.is_cuda:
        from outrider.ops.sampling.sample_token_triton import best_keys_triton

        return best_keys_triton(scores, noise, first)
    if isinstance(noise, RowNoise) and _has_compiled(scores):
        from outrider.ops.sampling.sample_token_compiled import noisy_best_compiled

        no_floors = scores.new_empty(0)
        return _keys_of(*noisy_best_compiled(scores, noise, no_floors, first), first)
    return best_keys_reference(scores, noise, first)


def best_keys_reference(
    scores: torch.Tensor,  # [n, width] float32, overwritten
    noise: RowNoise | NoNoise,
    first: int,
) -> torch.Tensor:  # [n] int64
    """The same in plain torch."""
    return _keys_of(*_best(scores, noise, first), first)


def _keys_of(
    tokens: torch.Tensor,  # [n] int64 column
    best: torch.Tensor,  # [n] float32
    first: int,
) -> torch.Tensor:  # [n] int64
    bits = torch.where(best == 0, 0.0, best).view(torch.int32)  # zeros of both signs are equal
    order = torch.where(best.isnan(), _LARGEST, bits ^ ((bits >> 31) & _LARGEST))
    return (order.long() << 32) | (_LARGEST - first - tokens)


def read_keys(keys: torch.Tensor) -> SampledTokens:  # [n] int64, as `best_keys` makes them
    """The tokens in the largest words of all parts, and whether they may be used."""
    order = (keys >> 32).to(torch.int32)
    best = (order ^ ((order >> 31) & _LARGEST)).view(torch.float32)
    return SampledTokens(tokens=_LARGEST - (keys & _LARGEST), faults=_faults(best))


def sample_token_reference(
    scores: torch.Tensor,  # [n, vocab] float32, overwritten
    noise: RowNoise | NoNoise,
    floors: torch.Tensor,  # [n] or [0]
) -> SampledTokens:
    """The same in plain torch."""
    if floors.shape[0]:
        scores.masked_fill_(scores < floors[:, None], -math.inf)
    tokens, best = _best(scores, noise, 0)
    return SampledTokens(tokens=tokens, faults=_faults(best))


def _best(
    scores: torch.Tensor, noise: RowNoise | NoNoise, first: int
) -> tuple[torch.Tensor, torch.Tensor]:  # [n] column and score
    if isinstance(noise, RowNoise):
        seeds = noise.seeds.index_select(0, noise.rows)
        drawn = gumbel(seeds, noise.positions, scores.shape[1], first)
        scores.add_(drawn.mul_(column_of(noise.temperatures, noise.rows)))
    return best_scores(scores)


def _has_compiled(scores: torch.Tensor) -> bool:
    return scores.dtype == torch.float32 and is_compiled(scores, _COMPILED)


def _faults(best: torch.Tensor) -> torch.Tensor:  # [n] float32 -> [n] int64
    is_fault = (best - best) != 0  # NaN
    return is_fault.long() + (best == -math.inf)
