"""The tree of every row from the candidates of a round."""

import torch

from outrider.ops.tree.candidates import Candidates
from outrider.ops.tree.draft_tree import DraftTree
from outrider.ops.tree.select_nodes import select_nodes
from outrider.ops.tree.share_nodes import share_nodes
from outrider.step.plan import StepPlan


def choose_tree(plan: StepPlan, root: torch.Tensor, candidates: Candidates) -> DraftTree:
    """The best candidates: of each row, or of all rows where a step cannot run all of them."""
    shape, budgets = plan.shape, plan.decode.budgets
    if shape.ragged:
        num_drafts = shape.ragged - shape.rows
        budgets = share_nodes(candidates, budgets, most=shape.nodes - 1, num_drafts=num_drafts)
    return select_nodes(root, candidates, budgets, shape.tree)
