"""What a drafter is. Plain decoding is the drafter that proposes nothing beyond node 0."""

from typing import Protocol

import torch

from outrider.plan.plan import StepPlan
from outrider.plan.tree import DraftTree
from outrider.step.rows import RowTable


class Drafter(Protocol):
    """Rides ahead of the target. `nodes` is the size of every tree it proposes, node 0 included."""

    @property
    def nodes(self) -> int: ...

    def propose(self, plan: StepPlan, table: RowTable) -> DraftTree:
        """A tree for every uniform row of the plan, by device operations alone."""
        ...


class NullDrafter:
    """Proposes a tree of one node: the last token, whose successor the target then chooses."""

    @property
    def nodes(self) -> int:
        return 1

    def propose(self, plan: StepPlan, table: RowTable) -> DraftTree:
        rows = plan.uniform.rows
        return single_node(table.last_tokens[rows])


def single_node(tokens: torch.Tensor) -> DraftTree:  # tokens [rows]
    """The tree of node 0 alone."""
    tokens = tokens[:, None]
    zero = torch.zeros_like(tokens)
    return DraftTree(tokens=tokens, parents=zero - 1, depths=zero, ancestors=zero + 1)
