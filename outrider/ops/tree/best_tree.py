"""The best nodes of a draft tree over a block, whose slots know all children before it grows.

A child never scores better than its parent. So the best node that is not yet in the tree is always
the next child of a node that is: nodes join the tree best first.
"""

from collections.abc import Sequence

import torch
from torch.nn import functional

from outrider.ops.tree.candidates import Candidates, SlotTokens
from outrider.ops.tree.grow_level import child_scores


def best_tree(
    slots: SlotTokens,
    budgets: torch.Tensor,  # [3, rows] steps, topk and nodes of each row
    *,
    num_drafts: int,  # nodes of a tree besides node 0
) -> Candidates:  # [rows, num_drafts] best first, so a parent comes before its children
    """The tree with the best nodes: at most `topk` children of a node, `steps` deep.

    Of equal scores the shallower node wins, then the child of the better parent. Where a row has
    fewer nodes, the others score -inf.
    """
    if budgets.is_cuda:
        from outrider.ops.tree.best_tree_triton import best_tree_triton

        return best_tree_triton(slots, budgets, num_drafts=num_drafts)
    return best_tree_reference(slots, budgets, num_drafts=num_drafts)


def best_tree_reference(slots: SlotTokens, budgets: torch.Tensor, *, num_drafts: int) -> Candidates:
    """The same in plain torch, level by level. A tree has at most as many nodes of a depth as their
    ancestors leave, so only so many of the best of a level can join it.
    """
    zeros = budgets.new_zeros(budgets.shape[1], 1)
    tips = Candidates(scores=zeros.float(), tokens=zeros, parents=zeros)  # node 0
    numbers, levels, first = zeros - 1, [], 0
    for depth in range(min(slots.logprobs.shape[1], num_drafts)):
        level = _below(tips, numbers, slots, budgets, depth)
        scores, order = level.scores.sort(dim=1, descending=True, stable=True)
        order = order[:, : num_drafts - depth]
        tips = Candidates(
            scores=scores[:, : num_drafts - depth],
            tokens=level.tokens.gather(1, order),
            parents=level.parents.gather(1, order),
        )
        numbers = first + torch.arange(order.shape[1], device=order.device).expand_as(order)
        levels.append(tips)
        first += order.shape[1]
    return _best_of(levels, num_drafts)


def _below(
    tips: Candidates,
    numbers: torch.Tensor,  # [rows, tips]
    slots: SlotTokens,
    budgets: torch.Tensor,  # [3, rows]
    depth: int,  # of the tips
) -> Candidates:
    """All children of the tips."""
    logprobs = slots.logprobs[:, depth, None]  # [rows, 1, topk]
    steps, topk, _ = budgets[:, :, None, None]
    rank = torch.arange(logprobs.shape[2], device=logprobs.device)
    is_allowed = (rank < topk) & (depth < steps) & ~logprobs.isnan()
    scores = child_scores(tips.scores[:, :, None], logprobs)  # [rows, tips, topk]
    return Candidates(
        scores=scores.where(is_allowed, float("-inf")).flatten(1),
        tokens=slots.tokens[:, depth, None].expand_as(scores).flatten(1),
        parents=numbers[:, :, None].expand_as(scores).flatten(1),
    )


def _best_of(levels: Sequence[Candidates], num_drafts: int) -> Candidates:
    """The best nodes of all levels, numbered in the order of their scores."""
    scores = torch.cat([each.scores for each in levels], 1)
    tokens = torch.cat([each.tokens for each in levels], 1)
    parents = torch.cat([each.parents for each in levels], 1)
    num_absent = max(num_drafts - scores.shape[1], 0)  # a short block cannot fill the tree
    scores = functional.pad(scores, (0, num_absent), value=float("-inf"))
    tokens, parents = (functional.pad(x, (0, num_absent)) for x in (tokens, parents))
    scores, order = scores.sort(dim=1, descending=True, stable=True)
    new_numbers = order.argsort(dim=1)
    parents = new_numbers.gather(1, parents.clamp_min(0)).where(parents >= 0, -1)
    best, scores = order[:, :num_drafts], scores[:, :num_drafts]
    is_there = scores > float("-inf")
    return Candidates(
        scores=scores,
        tokens=tokens.gather(1, best).where(is_there, 0),
        parents=parents.gather(1, best).where(is_there, -1),
    )
