"""The best candidates of a draft round, as one tree per row."""

import torch
from torch.nn import functional

from outrider.ops.compiled.why_not_compiled import is_compiled
from outrider.ops.tree.candidates import Candidates, SelectedTree
from outrider.ops.tree.draft_tree import DraftTree
from outrider.wire.draft_budget import Budget

_COMPILED = "outrider.ops.compiled.grown_trees"


def select_nodes(
    root: torch.Tensor,  # [rows] token of node 0
    candidates: Candidates,
    budgets: torch.Tensor,  # [3, rows]
    tree: Budget,
) -> SelectedTree:
    """The tree of the best candidates, as many as each row's budget allows.

    Of equal scores the lower candidate number wins, as in every frontier.
    """
    if root.is_cuda:
        from outrider.ops.tree.select_nodes_triton import select_nodes_triton

        return select_nodes_triton(root, candidates, budgets, tree)
    if is_compiled(root, _COMPILED):
        from outrider.ops.tree.select_nodes_compiled import select_nodes_compiled

        return select_nodes_compiled(root, candidates, budgets, tree)
    return select_nodes_reference(root, candidates, budgets, tree)


def select_nodes_reference(
    root: torch.Tensor, candidates: Candidates, budgets: torch.Tensor, tree: Budget
) -> SelectedTree:
    """The same in plain torch."""
    scores = candidates.scores
    num_candidates = scores.shape[1]
    best, order = scores.sort(dim=1, descending=True, stable=True)
    most = min(tree.nodes - 1, num_candidates)
    rank = torch.arange(most, device=order.device)
    is_present = (rank < budgets[2][:, None] - 1) & (best[:, :most] > float("-inf"))
    index = torch.where(is_present, order[:, :most], num_candidates)
    chosen = index.sort(dim=1).values  # absent nodes last
    drafts = chosen.where(chosen < num_candidates, -1)
    num_absent = tree.nodes - 1 - most  # a short tree cannot fill the budget
    return SelectedTree(
        tree=_tree_of(root, chosen, candidates, tree),
        numbers=functional.pad(drafts, (1, num_absent), value=-1),
    )


def best_candidates(
    root: torch.Tensor, candidates: Candidates, budgets: torch.Tensor, tree: Budget
) -> Candidates:  # [rows, nodes - 1]
    """The candidates that `select_nodes` would choose; absent ones score -inf."""
    selected = select_nodes(root, candidates, budgets, tree)
    numbers, own = selected.numbers[:, 1:], selected.tree
    scores = candidates.scores.gather(1, numbers.clamp_min(0))
    return Candidates(
        scores=scores.masked_fill(numbers < 0, float("-inf")),
        tokens=own.tokens[:, 1:],
        parents=own.parents[:, 1:] - 1,  # candidate n is node n + 1
    )


def _tree_of(
    root: torch.Tensor,  # [rows]
    chosen: torch.Tensor,  # [rows, drafts] candidate numbers, ascending; absent: past the last
    candidates: Candidates,
    tree: Budget,
) -> DraftTree:
    tokens, parents = candidates.tokens, candidates.parents
    is_present = chosen < tokens.shape[1]
    index = chosen.clamp_max(tokens.shape[1] - 1)
    parent_number = parents.gather(1, index)
    # Node of a candidate: one more than the chosen numbers before it. Node 0 has number -1.
    parent = torch.searchsorted(chosen, parent_number) + 1
    parent = torch.where(is_present & (parent_number >= 0), parent, 0)
    draft = torch.where(is_present, tokens.gather(1, index), -1)
    num_absent = tree.nodes - 1 - chosen.shape[1]  # a short tree cannot fill the budget
    node_tokens = functional.pad(torch.cat([root[:, None], draft], 1), (0, num_absent), value=-1)
    node_parents = functional.pad(parent, (1, num_absent), value=0)
    return _with_ancestry(node_tokens, node_parents, tree.steps)


def _with_ancestry(tokens: torch.Tensor, parents: torch.Tensor, steps: int) -> DraftTree:
    """Depths and ancestor masks from parent indices; here node 0 is its own parent."""
    node = torch.arange(tokens.shape[1], device=tokens.device)
    own_bit = (torch.ones_like(node) << node).expand_as(tokens)
    is_draft = (node > 0).long()
    ancestors, depths = own_bit, torch.zeros_like(tokens)
    for _ in range(max(steps, 1)):  # each pass reaches one level deeper
        ancestors = own_bit | ancestors.gather(1, parents)
        depths = (depths.gather(1, parents) + 1) * is_draft
    return DraftTree(
        tokens=tokens, parents=parents - (node == 0).long(), depths=depths, ancestors=ancestors
    )
