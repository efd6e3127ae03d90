"""How experts are selected: the plain sizes that config.json states. No torch."""

from dataclasses import dataclass
from typing import Literal

Score = Literal["softmax", "sigmoid", "sqrtsoftplus"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertGroups:
    """Experts come in equal groups, and a token is routed to experts of its best groups only.

    The score of a group is the sum of the scores of its `num_scored` best experts.
    """

    num: int
    num_selected: int  # groups per token
    num_scored: int


ONE_GROUP = ExpertGroups(num=1, num_selected=1, num_scored=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingConfig:
    """How the scores of a token become its experts and their weights."""

    top_k: int  # experts per token
    score: Score
    is_normed: bool  # the weights of a token sum to one before they are scaled
    scale: float = 1.0
    groups: ExpertGroups = ONE_GROUP
