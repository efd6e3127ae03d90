"""A drafter that costs nothing: a step is then only the target's verification."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from outrider.models.model_config import AnyAttention
from outrider.ops.tree.draft_tree import DraftTree
from outrider.runtime.draft_kinds import DraftRoom
from outrider.spec.drafter import Drafter, ModelessDrafter
from outrider.step.plan import StepPlan
from outrider.step.row_table import RowTable
from outrider.wire.draft_budget import Budget
from outrider.wire.runner_facts import DraftFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedDraft:
    """Trees of one shape, whose drafts repeat the last token."""

    budget: Budget

    @property
    def facts(self) -> DraftFacts:
        return DraftFacts(
            budget=self.budget,
            lead=0,
            lookahead=0,
            needs_text=False,
            is_paced=False,
            is_adaptive=False,
            is_ranked=False,
        )

    @property
    def attention(self) -> Sequence[AnyAttention]:
        return ()

    def build(self, room: DraftRoom) -> Drafter:
        shape = fixed_tree(self.budget, rows=room.largest.rows, device=room.sampling.seed.device)
        return _FixedDrafter(self.facts, shape)


def fixed_tree(budget: Budget, *, rows: int, device: torch.device) -> DraftTree:
    """`topk` chains side by side below node 0; where they would get too deep, they fork."""
    parents, depths, ancestors = [-1], [0], [1]
    for node in range(1, budget.nodes):
        parent = max(0, node - budget.topk)
        while depths[parent] >= budget.steps:
            parent = parents[parent]
        parents.append(parent)
        depths.append(depths[parent] + 1)
        ancestors.append(ancestors[parent] | 1 << node)
    ancestors = [mask - (1 << 64) if mask >> 63 else mask for mask in ancestors]  # a signed word
    columns = torch.tensor([parents, depths, ancestors], device=device)  # [3, nodes]
    shape = columns[:, None].repeat(1, rows, 1)  # [3, rows, nodes]
    return DraftTree(
        tokens=torch.zeros_like(shape[0]),
        parents=shape[0],
        depths=shape[1],
        ancestors=shape[2],
    )


class _FixedDrafter(ModelessDrafter):
    """Owns the shape of its trees, for as many rows as a step can have."""

    def __init__(self, facts: DraftFacts, shape: DraftTree) -> None:
        super().__init__(facts)
        self._shape = shape

    def propose(self, plan: StepPlan, table: RowTable) -> DraftTree:
        rows, nodes = plan.shape.rows, plan.shape.nodes
        last = table.last_tokens.index_select(0, plan.decode.rows)  # [rows]
        return DraftTree(
            tokens=last[:, None].repeat(1, nodes),
            parents=self._shape.parents[:rows, :nodes],
            depths=self._shape.depths[:rows, :nodes],
            ancestors=self._shape.ancestors[:rows, :nodes],
        )
