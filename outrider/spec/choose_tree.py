"""The tree of every row from the candidates of a round, and what its acceptance teaches."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from outrider.ops.tree.acceptance_table import (
    calibrate_,
    count_accepted_,
    counts_for_little,
    entries_of,
    make_acceptance_table,
)
from outrider.ops.tree.candidates import Candidates, SelectedTree
from outrider.ops.tree.draft_tree import DraftTree, VerifyResult
from outrider.ops.tree.limit_children import limit_children_
from outrider.ops.tree.select_nodes import select_nodes
from outrider.ops.tree.share_nodes import share_nodes
from outrider.step.plan import StepPlan
from outrider.wire.draft_budget import FEWEST_SHARING

Kinds = Callable[[], torch.Tensor]  # [rows] int64: which rows are measured together


@dataclass(frozen=True, slots=True)
class _Drafted:
    """What a step drafted, until its result is known."""

    entries: torch.Tensor  # [rows, width] of the table, by candidate
    selected: SelectedTree


class TreeChooser:
    """Owns the measured chances of drafts. Scores of one drafter are compared without them, unless
    a step is ragged: other steps verify all that their rows may draft.

    Where counting takes little time, those steps count as well. So the first step that shares
    drafts knows which ones were accepted before.
    """

    def __init__(self, device: torch.device, *, learns_alike: bool = False) -> None:
        self._table = make_acceptance_table(device)
        # Whether steps of enough rows count that draft alike: steps that share may follow.
        self._learns_alike = learns_alike and counts_for_little(device)
        self._drafted: _Drafted | None = None  # inside a step whose drafts are measured

    def choose(
        self, plan: StepPlan, root: torch.Tensor, candidates: Candidates, kinds: Kinds
    ) -> DraftTree:  # root [rows]
        """The best candidates: of each row, or of all rows where a step cannot run all of them."""
        shape = plan.shape
        is_counted = shape.ragged or (self._learns_alike and shape.rows >= FEWEST_SHARING)
        if not is_counted:
            self._drafted = None
            return select_nodes(root, candidates, plan.decode.budgets, shape.tree).tree
        by_candidate, steps = kinds()[:, None].expand_as(candidates.parents), shape.tree.steps
        if shape.ragged:
            entries = calibrate_(candidates, by_candidate, self._table, steps=steps)
        else:
            entries = entries_of(candidates, by_candidate, self._table, steps=steps)
        return self._select(plan, root, candidates, entries)

    def choose_measured(
        self,
        plan: StepPlan,
        root: torch.Tensor,  # [rows]
        candidates: Candidates,  # of several proposers; scores are written
        kinds: torch.Tensor,  # [rows, width] int64: which proposer, and what kind of row
    ) -> DraftTree:
        """The best candidates of several proposers, whose scores only measuring makes comparable.

        A node has at most `topk` children, as with one proposer.
        """
        steps = plan.shape.tree.steps
        entries = calibrate_(candidates, kinds, self._table, steps=steps)
        limit_children_(candidates, plan.decode.budgets[1], steps=steps)
        return self._select(plan, root, candidates, entries)

    def learn(self, plan: StepPlan, verify_result: VerifyResult) -> None:
        """Count which drafts of the step were accepted. A step that failed left some uncounted."""
        drafted, self._drafted = self._drafted, None
        if plan.shape.nodes > 1 and drafted is not None:
            count_accepted_(self._table, drafted.entries, drafted.selected, verify_result.path)

    def _select(
        self, plan: StepPlan, root: torch.Tensor, candidates: Candidates, entries: torch.Tensor
    ) -> DraftTree:
        shape, budgets = plan.shape, plan.decode.budgets
        if shape.ragged:
            num_drafts = shape.ragged - shape.rows
            budgets = share_nodes(candidates, budgets, most=shape.nodes - 1, num_drafts=num_drafts)
        selected = select_nodes(root, candidates, budgets, shape.tree)
        self._drafted = _Drafted(entries, selected)
        return selected.tree
