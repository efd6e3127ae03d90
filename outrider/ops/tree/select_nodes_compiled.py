"""`select_nodes` on a CPU, in one compiled call instead of about 60 small operations."""

import torch

from outrider.ops.compiled.grown_trees import (
    ANCESTORS,
    CANDIDATES,
    DEPTHS,
    PARENTS,
    TOKENS,
    select_tree_nodes,
)
from outrider.ops.compiled.thread_team import run_alone
from outrider.ops.graph_break import graph_break
from outrider.ops.tree.candidates import Candidates, SelectedTree
from outrider.ops.tree.draft_tree import DraftTree
from outrider.wire.draft_budget import Budget

_FUNCTION = int(select_tree_nodes.address)


def select_nodes_compiled(
    root: torch.Tensor,  # [rows]
    candidates: Candidates,
    budgets: torch.Tensor,  # [3, rows]
    tree: Budget,
) -> SelectedTree:
    written = root.new_empty(5, root.shape[0], tree.nodes)
    graph_break(_select, root, candidates, budgets, written)
    parts = written.unbind(0)
    return SelectedTree(
        tree=DraftTree(
            tokens=parts[TOKENS],
            parents=parts[PARENTS],
            depths=parts[DEPTHS],
            ancestors=parts[ANCESTORS],
        ),
        numbers=parts[CANDIDATES],
    )


def _select(
    root: torch.Tensor,
    candidates: Candidates,
    budgets: torch.Tensor,
    written: torch.Tensor,  # [5, rows, nodes]
) -> None:
    budgets = budgets if budgets.stride(1) == 1 else budgets.contiguous()
    found = candidates.scores, candidates.tokens, candidates.parents
    sizes = *candidates.scores.shape, written.shape[2], budgets.stride(0)
    strides = (tensor.stride(0) for tensor in found)
    tensors = (root.contiguous(), *found, budgets, written)
    run_alone(_FUNCTION, (*sizes, *strides, *(tensor.data_ptr() for tensor in tensors)))
