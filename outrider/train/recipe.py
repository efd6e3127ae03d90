"""The numbers a run is made of. Two runs with the same recipe and answers are the same run."""

import math
from dataclasses import dataclass
from typing import Literal

from outrider.train.loss import LossKind

OptimizerKind = Literal["adamw", "muon"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningRates:
    """How fast weights move."""

    peak: float  # of the schedule, for everything but the scores
    warmup: float  # share of the steps over which it rises
    floor: float  # share of the peak it falls to
    clip: float  # longest gradient
    scores: float  # share of the rate that the scores get, which begin as the target's
    scores_frozen: float  # share of the steps before they move at all
    optimizer: OptimizerKind = "adamw"  # of matrices; vectors and scores always have adamw


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What is done in which order."""

    steps: int
    batch: int  # sequences per step
    depth: int  # how often a row is fed with itself
    decay: float  # weight of a depth relative to the one before
    loss: LossKind
    seed: int


def rate_at(step: int, recipe: Recipe, rates: LearningRates) -> float:
    """A straight rise, then half a cosine down to the floor."""
    rise = max(1, round(recipe.steps * rates.warmup))
    if step < rise:
        return rates.peak * (step + 1) / rise
    share = (step - rise) / max(1, recipe.steps - rise)
    low = rates.peak * rates.floor
    return low + (rates.peak - low) * 0.5 * (1 + math.cos(math.pi * min(share, 1.0)))


def scores_rate_at(step: int, recipe: Recipe, rates: LearningRates) -> float:
    """The rate of the scores; 0 while they are frozen."""
    is_frozen = step < recipe.steps * rates.scores_frozen
    return 0.0 if is_frozen else rates.scores * rate_at(step, recipe, rates)
