"""A drafter on several ranks: all of them verify the tree that rank 0 proposes."""

from collections.abc import Sequence

import torch

from outrider.distributed.rank_group import RankGroup
from outrider.models.draft_model import AuxLayers
from outrider.ops.tree.draft_tree import DraftTree, StepOutcome
from outrider.ops.tree.plan_rows import ChunkRows, DecodeRows
from outrider.spec.drafter import Drafter
from outrider.step.plan import DraftPlan, StepPlan
from outrider.step.row_table import RowTable
from outrider.step.shape import StepShape
from outrider.wire.runner_facts import DraftFacts
from outrider.wire.scheduled_batch import RowAdmission


class AgreedDrafter:
    """Owns a drafter. Ranks that hold a whole draft head could differ in the last bit."""

    def __init__(self, drafter: Drafter, ranks: RankGroup) -> None:
        self._drafter = drafter
        self._ranks = ranks

    @property
    def facts(self) -> DraftFacts:
        return self._drafter.facts

    @property
    def aux_layers(self) -> AuxLayers:
        return self._drafter.aux_layers

    def bind(self, shape: StepShape, decode: DecodeRows, chunk: ChunkRows) -> DraftPlan:
        return self._drafter.bind(shape, decode, chunk)

    def admit(self, admissions: Sequence[RowAdmission]) -> None:
        self._drafter.admit(admissions)

    def forget(self) -> None:
        self._drafter.forget()

    def propose(self, plan: StepPlan, table: RowTable) -> DraftTree:
        tree = self._drafter.propose(plan, table)
        if plan.shape.nodes == 1:  # the last token, which all ranks know
            return tree
        packed = torch.stack([tree.tokens, tree.parents, tree.depths, tree.ancestors])
        self._ranks.copy_first_(packed)
        tokens, parents, depths, ancestors = packed.unbind()
        return DraftTree(tokens=tokens, parents=parents, depths=depths, ancestors=ancestors)

    def observe(self, plan: StepPlan, outcome: StepOutcome, table: RowTable) -> None:
        self._drafter.observe(plan, outcome, table)
