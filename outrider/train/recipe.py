"""The settings of a run. Two runs with equal settings and answers give equal heads."""

import math
from dataclasses import dataclass
from typing import Literal

from outrider.train.loss import LossKind

OptimizerKind = Literal["adamw", "muon"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningRates:
    """The learning-rate schedule. `scores` is about lm_head, which starts as the target's."""

    peak: float  # highest rate, of all weights but lm_head
    warmup: float  # share of the steps in which the rate rises
    floor: float  # last rate, as a share of the peak
    clip: float  # largest norm of the gradient
    scores: float  # rate of lm_head, as a share of the others
    scores_frozen: float  # share of the steps during which lm_head is frozen
    optimizer: OptimizerKind = "adamw"  # of matrices; vectors and lm_head always use adamw


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The settings that decide what a run computes."""

    steps: int
    batch: int  # sequences per step
    depth: int  # draft steps that are trained per row
    decay: float  # weight of a depth relative to the one before
    loss: LossKind
    seed: int
    anchors: int = 0  # blocks that are trained per sequence; a head without blocks trains all rows


def rate_at(step: int, recipe: Recipe, rates: LearningRates) -> float:
    """The learning rate: a linear rise, then half a cosine down to the floor."""
    rise = max(1, round(recipe.steps * rates.warmup))
    if step < rise:
        return rates.peak * (step + 1) / rise
    share = (step - rise) / max(1, recipe.steps - rise)
    low = rates.peak * rates.floor
    return low + (rates.peak - low) * 0.5 * (1 + math.cos(math.pi * min(share, 1.0)))


def scores_rate_at(step: int, recipe: Recipe, rates: LearningRates) -> float:
    """The learning rate of lm_head; 0 while it is frozen."""
    is_frozen = step < recipe.steps * rates.scores_frozen
    return 0.0 if is_frozen else rates.scores * rate_at(step, recipe, rates)
