"""Drafts of a model and of a text lookup in one tree, by the measured chances of both."""

from collections.abc import Sequence

from outrider.ops.tree.chain import single_node
from outrider.ops.tree.draft_tree import DraftTree, StepOutcome
from outrider.ops.tree.graft_paths import NUM_SOURCES, graft
from outrider.spec.choose_tree import TreeChooser
from outrider.spec.drafter import WrappedDrafter
from outrider.spec.grow_tree import level_numbers
from outrider.spec.model_drafter import ModelDrafter
from outrider.spec.text_lookup import TextLookup
from outrider.step.plan import StepPlan
from outrider.step.row_table import RowTable
from outrider.wire.runner_facts import DraftFacts
from outrider.wire.scheduled_batch import FinishedText, RowAdmission


class MergedDrafter(WrappedDrafter):
    """Owns a draft model's drafter and a lookup.

    The model drafts `model_steps` levels at most. The paths of the lookup may go deeper, since they
    cost nothing.
    """

    def __init__(
        self,
        model: ModelDrafter,
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
        levels = [level_numbers(depth, tree.topk) for depth in range(1, steps + 1)]
        is_sampled = self._model.sampled_rows(plan)
        merged = graft(candidates, levels, found, decode.budgets, is_sampled)
        kinds = merged.sources + NUM_SOURCES * is_sampled[:, None]
        return self._chooser.choose_measured(plan, root, merged.candidates, kinds)

    def observe(self, plan: StepPlan, outcome: StepOutcome, table: RowTable) -> None:
        self._chooser.learn(plan, outcome.verify_result)
        self._lookup.append(plan, outcome)
        super().observe(plan, outcome, table)
