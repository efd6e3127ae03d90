"""Drafts without a model: the tokens that followed earlier occurrences of the last tokens."""

import math
from collections.abc import Sequence

import torch
from torch.nn import functional

from outrider.ops.tree.candidates import Candidates
from outrider.ops.tree.chain import single_node
from outrider.ops.tree.draft_tree import DraftTree, StepOutcome
from outrider.ops.tree.text_paths import FoundPaths, join_paths
from outrider.spec.choose_tree import TreeChooser
from outrider.spec.drafter import ModelessDrafter
from outrider.spec.text_lookup import TextLookup
from outrider.step.plan import StepPlan
from outrider.step.row_table import RowTable
from outrider.wire.runner_facts import DraftFacts
from outrider.wire.scheduled_batch import FinishedText, RowAdmission

_STEP_COST = -math.log(0.8)  # the next draft of a correct path is correct about this often
_AGE_COST = 1e-5  # of equally likely branches, the one from the later text wins
_LONG_MATCH = 3  # tokens: rows with at least this are counted together


class NgramDrafter(ModelessDrafter):
    """Drafts what a lookup finds, in the row's own text or in finished ones, too."""

    def __init__(self, facts: DraftFacts, *, lookup: TextLookup, chooser: TreeChooser) -> None:
        super().__init__(facts)
        self._lookup = lookup
        self._chooser = chooser

    def admit(self, admissions: Sequence[RowAdmission]) -> None:
        self._lookup.admit(admissions)

    def remember(self, texts: Sequence[FinishedText]) -> None:
        self._lookup.remember(texts)

    def forget(self) -> None:
        self._lookup.forget()

    def propose(self, plan: StepPlan, table: RowTable) -> DraftTree:
        """A tree of all continuations found; a row without a match proposes nothing."""
        tree, decode = plan.shape.tree, plan.decode
        root = table.last_tokens.index_select(0, decode.rows)
        if tree.nodes == 1 or not tree.steps:
            return single_node(root)
        found = self._lookup.search(plan)
        # A longer match is right more often, whatever its weight among the matches of its row.
        return self._chooser.choose(
            plan,
            root,
            merge(found, decode.budgets),
            lambda: found.longest.clamp_max(_LONG_MATCH).long(),
        )

    def observe(self, plan: StepPlan, outcome: StepOutcome, table: RowTable) -> None:
        del table
        self._chooser.learn(plan, outcome.verify_result)
        self._lookup.append(plan, outcome)


def merge(
    found: FoundPaths,
    budgets: torch.Tensor,  # [3, rows]
) -> Candidates:
    """The tree of all paths, as candidates. A branch has the number of the first of its paths."""
    paths, joined = found.paths, join_paths(found)
    num, steps = paths.shape[1:]
    order = torch.arange(num, device=paths.device)
    depth = torch.arange(1, steps + 1, device=paths.device)
    first = joined.first
    is_first = first == order[:, None]
    scores = joined.weights.log() - _STEP_COST * depth - _AGE_COST * first
    parent_of = functional.pad(first[..., :-1], (1, 0))  # paths of one parent have its number
    same_parent = parent_of[:, :, None] == parent_of[:, None]
    num_better = (same_parent & is_first[:, None] & (scores[:, None] > scores[:, :, None])).sum(2)
    own_steps, own_topk, _ = budgets[:, :, None, None]
    is_known = (paths >= 0).cumprod(2).bool()  # a finished text has no next token
    is_allowed = (num_better < own_topk).cumprod(2).bool() & (depth <= own_steps) & is_first
    scores = torch.where(is_allowed & is_known, scores, float("-inf"))
    parents = functional.pad(first[..., :-1] + num * (depth[:-1] - 1), (1, 0), value=-1)
    # Level by level: [rows, num, steps] -> [rows, steps * num].
    scores, tokens, parents = (x.transpose(1, 2).flatten(1) for x in (scores, paths, parents))
    return Candidates(scores=scores, tokens=tokens, parents=parents)
