"""The one tree builder: level by level, the best branches grow; at the end the best nodes stay.

A candidate's score estimates the log-probability that the target's text runs through it. Candidates
are numbered level by level, so a parent always has a smaller number than its children.
"""

from dataclasses import dataclass

import torch

from outrider.plan.tree import DraftTree
from outrider.wire.speculation import Budget

_STEP_COST = 1e-3  # of two nodes that are as likely, the shallower one is checked first


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """Candidates of one depth."""

    scores: torch.Tensor  # [rows, width] -inf where the row's budget rules it out
    tokens: torch.Tensor  # [rows, width]
    parents: torch.Tensor  # [rows, width] number of the parent candidate, -1 for node 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Frontier:
    """The candidates of a level that are run through the draft model, best first."""

    scores: torch.Tensor  # [rows, topk]
    tokens: torch.Tensor  # [rows, topk]
    numbers: torch.Tensor  # [rows, topk] candidate numbers
    places: torch.Tensor  # [rows, topk] index of each one's parent in the frontier before


def expand(
    scores: torch.Tensor,  # [rows, branches] of the frontier; node 0 has one branch of score 0
    numbers: torch.Tensor,  # [rows, branches]
    logprobs: torch.Tensor,  # [rows, branches, vocab] of the next token
    budgets: torch.Tensor,  # [3, rows]
    *,
    topk: int,
    depth: int,
    target_ids: torch.Tensor,  # [vocab]
) -> Level:
    """The children of a frontier: the `topk` most likely of each branch."""
    values, index = logprobs.topk(topk, dim=-1)  # [rows, branches, topk]
    tokens = target_ids[index]
    steps, own_topk, _ = budgets[:, :, None, None]
    rank = torch.arange(topk, device=scores.device)
    is_allowed = (rank < own_topk) & (depth <= steps)  # [rows, 1, topk]
    # Strictly below the parent, however large the scores: a parent that ties with its child could
    # be dropped for it, and the child would hang in the air.
    ceiling = torch.nextafter(scores, torch.full_like(scores, float("-inf")))
    joint = torch.minimum(scores[:, :, None] + values - _STEP_COST, ceiling[:, :, None])
    return Level(
        scores=torch.where(is_allowed, joint, float("-inf")).flatten(1),
        tokens=tokens.flatten(1),
        parents=numbers[:, :, None].expand_as(tokens).flatten(1),
    )


def advance_frontier(
    level: Level, budgets: torch.Tensor, *, topk: int, first_number: int
) -> Frontier:
    """The best candidates of a level; as many of them live as the row's own topk."""
    scores, index = level.scores.topk(topk, dim=-1)  # [rows, topk]
    rank = torch.arange(topk, device=index.device)
    is_alive = rank < budgets[1][:, None]
    return Frontier(
        scores=torch.where(is_alive, scores, float("-inf")),
        tokens=level.tokens.gather(1, index),
        numbers=first_number + index,
        places=index // topk,  # each branch has `topk` children
    )


def select(
    root: torch.Tensor, levels: list[Level], budgets: torch.Tensor, tree: Budget
) -> DraftTree:
    """The tree of the best candidates, as many as each row's budget allows; `root` is [rows]."""
    scores = torch.cat([level.scores for level in levels], dim=1)  # [rows, candidates]
    tokens = torch.cat([level.tokens for level in levels], dim=1)
    parents = torch.cat([level.parents for level in levels], dim=1)
    num_candidates = scores.shape[1]
    best, index = scores.topk(min(tree.nodes - 1, num_candidates), dim=1)
    rank = torch.arange(index.shape[1], device=index.device)
    is_present = (rank < budgets[2][:, None] - 1) & (best > float("-inf"))
    chosen = torch.where(is_present, index, num_candidates).sort(dim=1).values  # absent ones last
    return _tree_of(root, chosen, tokens, parents, tree)


def _tree_of(
    root: torch.Tensor,  # [rows]
    chosen: torch.Tensor,  # [rows, drafts] candidate numbers, ascending; absent: past the last
    tokens: torch.Tensor,  # [rows, candidates]
    parents: torch.Tensor,  # [rows, candidates]
    tree: Budget,
) -> DraftTree:
    is_present = chosen < tokens.shape[1]
    index = chosen.clamp_max(tokens.shape[1] - 1)
    parent_number = parents.gather(1, index)
    # Node of a candidate: one more than the chosen numbers before it. Node 0 has number -1.
    parent = torch.searchsorted(chosen, parent_number) + 1
    parent = torch.where(is_present & (parent_number >= 0), parent, 0)
    draft = torch.where(is_present, tokens.gather(1, index), -1)
    absent = tree.nodes - 1 - chosen.shape[1]  # a short tree cannot fill the budget
    node_tokens = torch.nn.functional.pad(
        torch.cat([root[:, None], draft], 1), (0, absent), value=-1
    )
    node_parents = torch.nn.functional.pad(parent, (1, absent), value=0)
    return _with_ancestry(node_tokens, node_parents, tree.steps)


def _with_ancestry(tokens: torch.Tensor, parents: torch.Tensor, steps: int) -> DraftTree:
    """Depths and ancestor masks from parent pointers; node 0 points to itself here."""
    node = torch.arange(tokens.shape[1], device=tokens.device)
    own = (torch.ones_like(node) << node).expand_as(tokens)
    is_draft = (node > 0).long()
    ancestors, depths = own, torch.zeros_like(tokens)
    for _ in range(max(steps, 1)):  # information moves down one level at a time
        ancestors = own | ancestors.gather(1, parents)
        depths = (depths.gather(1, parents) + 1) * is_draft
    return DraftTree(
        tokens=tokens, parents=parents - (node == 0).long(), depths=depths, ancestors=ancestors
    )
