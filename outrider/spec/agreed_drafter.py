"""A drafter on several ranks: all of them verify the tree that rank 0 proposes."""

import torch

from outrider.distributed.rank_group import RankGroup
from outrider.ops.tree.draft_tree import DraftTree
from outrider.spec.drafter import Drafter, WrappedDrafter
from outrider.step.plan import StepPlan
from outrider.step.row_table import RowTable


class AgreedDrafter(WrappedDrafter):
    """Owns a drafter. Ranks that hold a whole draft head could differ in the last bit."""

    def __init__(self, drafter: Drafter, ranks: RankGroup) -> None:
        super().__init__(drafter)
        self._ranks = ranks

    def propose(self, plan: StepPlan, table: RowTable) -> DraftTree:
        tree = super().propose(plan, table)
        if plan.shape.nodes == 1:  # the last token, which all ranks know
            return tree
        packed = torch.stack([tree.tokens, tree.parents, tree.depths, tree.ancestors])
        self._ranks.copy_first_(packed)
        tokens, parents, depths, ancestors = packed.unbind()
        return DraftTree(tokens=tokens, parents=parents, depths=depths, ancestors=ancestors)
