"""Drafts of a model and of a text lookup in one tree, by the measured chances of both."""

from collections.abc import Sequence
from typing import Protocol

import torch

from outrider.ops.tree.candidates import Candidates
from outrider.ops.tree.chain import single_node
from outrider.ops.tree.draft_tree import DraftTree, StepOutcome
from outrider.ops.tree.graft_paths import NUM_SOURCES, graft
from outrider.ops.tree.select_nodes import best_candidates
from outrider.spec.choose_tree import TreeChooser
from outrider.spec.drafter import Drafter, WrappedDrafter
from outrider.spec.text_lookup import TextLookup
from outrider.step.plan import StepPlan
from outrider.step.row_table import RowTable
from outrider.wire.runner_facts import DraftFacts
from outrider.wire.scheduled_batch import FinishedText, RowAdmission

_MOST_CANDIDATES = 256  # of the model: all pairs of candidates are compared


class TreeGrower(Drafter, Protocol):
    """A drafter whose candidates can join a tree with others."""

    def grow_candidates(
        self, plan: StepPlan, table: RowTable, *, steps: int
    ) -> tuple[torch.Tensor, Candidates]:
        """Node 0 of each row [rows], and the candidates of at most so many levels below it."""
        ...

    def sampled_rows(self, plan: StepPlan) -> torch.Tensor:  # [rows] int64
        """1 for decode rows that sample, 0 for greedy ones."""
        ...


class MergedDrafter(WrappedDrafter):
    """Owns a draft model's drafter and a lookup.

    The model drafts `model_steps` levels at most. The paths of the lookup may go deeper, since they
    cost nothing.
    """

    def __init__(
        self,
        model: TreeGrower,
        lookup: TextLookup,
        *,
        facts: DraftFacts,
        model_steps: int,
        chooser: TreeChooser,
    ) -> None:
        super().__init__(model)
        self._model = model
        self._lookup = lookup
        self._facts = facts
        self._model_steps = model_steps
        self._chooser = chooser

    @property
    def facts(self) -> DraftFacts:
        return self._facts

    def admit(self, admissions: Sequence[RowAdmission]) -> None:
        super().admit(admissions)
        self._lookup.admit(admissions)

    def remember(self, texts: Sequence[FinishedText]) -> None:
        self._lookup.remember(texts)

    def forget(self) -> None:
        super().forget()
        self._lookup.forget()

    def propose(self, plan: StepPlan, table: RowTable) -> DraftTree:
        """The best nodes of both. Where both have a node, it is one of its own kind."""
        tree, decode = plan.shape.tree, plan.decode
        if tree.nodes == 1 or not tree.steps:
            return single_node(table.last_tokens.index_select(0, decode.rows))
        steps = min(tree.steps, self._model_steps)
        found = self._lookup.search(plan)
        root, candidates = self._model.grow_candidates(plan, table, steps=steps)
        if candidates.scores.shape[1] > _MOST_CANDIDATES:
            candidates = best_candidates(root, candidates, decode.budgets, tree)
        is_sampled = self._model.sampled_rows(plan)
        merged = graft(candidates, found, decode.budgets, is_sampled, steps=steps)
        kinds = merged.sources + NUM_SOURCES * is_sampled[:, None]
        return self._chooser.choose_measured(plan, root, merged.candidates, kinds)

    def observe(self, plan: StepPlan, outcome: StepOutcome, table: RowTable) -> None:
        self._chooser.learn(plan, outcome.verify_result)
        self._lookup.append(plan, outcome)
        super().observe(plan, outcome, table)
