"""Which rows of a ragged step draft how much: the best candidates of all rows together."""

import torch

from outrider.ops.tree.candidates import Candidates


def share_nodes(
    candidates: Candidates,
    budgets: torch.Tensor,  # [3, rows] steps, topk and nodes
    *,
    most: int,  # drafts of a row
    num_drafts: int,  # of all rows together
) -> torch.Tensor:  # [3, rows] the same with the nodes that each row gets
    """Give the drafts of a step to the candidates with the best scores.

    No child scores better than its parent, so the best candidates of a row are a tree. Of equal
    scores the first row wins.
    """
    if budgets.is_cuda:
        from outrider.ops.tree.share_nodes_triton import share_nodes_triton

        return share_nodes_triton(candidates, budgets, most=most, num_drafts=num_drafts)
    return share_nodes_reference(candidates, budgets, most=most, num_drafts=num_drafts)


def share_nodes_reference(
    candidates: Candidates, budgets: torch.Tensor, *, most: int, num_drafts: int
) -> torch.Tensor:  # [3, rows]
    """The same in plain torch."""
    best = candidates.scores.sort(dim=1, descending=True).values[:, :most]
    rank = torch.arange(best.shape[1], device=best.device)
    is_allowed = (rank < budgets[2][:, None] - 1) & (best > float("-inf"))
    allowed = best.masked_fill(~is_allowed, float("-inf")).flatten()
    order = allowed.sort(descending=True, stable=True).indices
    is_chosen = torch.zeros_like(allowed, dtype=torch.bool)
    is_chosen[order[:num_drafts]] = True
    counts = (is_chosen.view_as(best) & is_allowed).sum(1)
    return torch.cat([budgets[:2], 1 + counts[None]])
