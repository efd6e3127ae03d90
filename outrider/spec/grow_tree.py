"""The one tree builder: level by level, the best branches grow; at the end the best nodes stay.

A candidate's score estimates the log-probability that the target's text runs through it. Candidates
are numbered level by level, so a parent always has a smaller number than its children.
"""

from dataclasses import dataclass

import torch

from outrider.sampling.draft_topk import Likely
from outrider.spec.draft_slots import DraftSlots
from outrider.step.draft_tree import DraftTree
from outrider.step.plan import DecodeRows
from outrider.wire.draft_budget import Budget

_STEP_COST = 1e-3  # of two nodes that are as likely, the shallower one is checked first
_COLUMNS = ("tokens", "parents", "depths", "ancestors")  # of a tree, as kernels return them


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Nodes that may join the tree: of one level, or of all levels in order."""

    scores: torch.Tensor  # [rows, width] float32, -inf where the row's budget rules it out
    tokens: torch.Tensor  # [rows, width]
    parents: torch.Tensor  # [rows, width] number of the parent candidate, -1 for node 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Frontier:
    """The tips that grow next, best first: `topk` of them in each row, or node 0 alone."""

    scores: torch.Tensor  # [rows, branches] float32
    numbers: torch.Tensor  # [rows, branches] candidate numbers, -1 for node 0
    places: torch.Tensor  # [rows, branches] index of each one's parent in the frontier before
    positions: torch.Tensor  # [rows, branches] absolute position of the children's tokens
    nodes: DraftTree  # [rows, branches] in the scratch region; `parents` mean nothing there


def room_for(tree: Budget, root: torch.Tensor) -> Candidates:  # root [rows]
    """All candidates of a round, still to be written, level by level."""
    size = root.shape[0], first_number(tree.steps + 1, tree.topk)
    return Candidates(
        scores=root.new_empty(size, dtype=torch.float32),
        tokens=root.new_empty(size),
        parents=root.new_empty(size),
    )


def first_number(depth: int, topk: int) -> int:
    """Candidates above a depth: node 0 has `topk` children, and so has each of `topk` tips."""
    return 0 if depth == 1 else topk + (depth - 2) * topk * topk


def level_of(candidates: Candidates, depth: int, topk: int) -> Candidates:
    """The candidates of one depth."""
    own = slice(first_number(depth, topk), first_number(depth + 1, topk))
    return Candidates(
        scores=candidates.scores[:, own],
        tokens=candidates.tokens[:, own],
        parents=candidates.parents[:, own],
    )


def grow(
    tips: Frontier,
    likely: Likely,  # of n = rows * branches: the next token after each branch
    decode: DecodeRows,
    *,
    candidates: Candidates,  # the level of this depth is written
    slots: DraftSlots,
    depth: int,
) -> Frontier:
    """The children of the tips: all are candidates, the best are the next tips.

    What is returned at the last depth means nothing.
    """
    level = level_of(candidates, depth, slots.tree.topk)
    if tips.scores.is_cuda:
        return _grown_on_gpu(tips, likely, decode, level, slots, depth)
    expand(tips, likely, decode.budgets, level=level, depth=depth)
    if not slots.num_branches(depth):
        return tips
    return advance_frontier(tips, level, decode, slots=slots, depth=depth)


def _grown_on_gpu(
    tips: Frontier,
    likely: Likely,
    decode: DecodeRows,
    level: Candidates,
    slots: DraftSlots,
    depth: int,
) -> Frontier:
    from outrider.ops.tree.grow_tree_triton import grow_level

    scores, numbers, places, positions, tokens, depths, ancestors = grow_level(
        (tips.scores, tips.numbers, tips.nodes.ancestors),
        (likely.logprobs, likely.tokens),
        budgets=decode.budgets,
        lengths=decode.lengths,
        level=(level.scores, level.tokens, level.parents),
        numbering=(depth, first_number(depth, slots.tree.topk), slots.first_node(depth)),
        num_tips=slots.num_branches(depth),
        step_cost=_STEP_COST,
    )
    nodes = DraftTree(tokens=tokens, parents=depths, depths=depths, ancestors=ancestors)
    return Frontier(scores=scores, numbers=numbers, places=places, positions=positions, nodes=nodes)


def expand(
    tips: Frontier,
    likely: Likely,
    budgets: torch.Tensor,  # [3, rows]
    *,
    level: Candidates,  # written
    depth: int,
) -> None:
    """Write the children of a frontier: the `topk` most likely of each branch."""
    scores, topk = tips.scores, likely.tokens.shape[1]
    values = likely.logprobs.view(*scores.shape, topk)  # [rows, branches, topk]
    steps, own_topk, _ = budgets[:, :, None, None]
    rank = torch.arange(topk, device=scores.device)
    is_allowed = (rank < own_topk) & (depth <= steps)  # [rows, 1, topk]
    # Strictly below the parent, however large the scores: a parent that ties with its child could
    # be dropped for it, and the child would hang in the air.
    ceiling = torch.nextafter(scores, torch.full_like(scores, float("-inf")))
    joint = torch.minimum(scores[:, :, None] + values - _STEP_COST, ceiling[:, :, None])
    level.scores.view_as(joint).copy_(torch.where(is_allowed, joint, float("-inf")))
    level.tokens.copy_(likely.tokens.view_as(level.tokens))
    level.parents.view_as(joint).copy_(tips.numbers[:, :, None].expand_as(joint))


def advance_frontier(
    tips: Frontier, level: Candidates, decode: DecodeRows, *, slots: DraftSlots, depth: int
) -> Frontier:
    """The best candidates of a level; as many of them live as the row's own topk."""
    topk, num_tips = slots.tree.topk, slots.num_branches(depth)
    best, order = level.scores.sort(dim=1, descending=True, stable=True)
    scores, index = best[:, :num_tips], order[:, :num_tips]
    rank = torch.arange(num_tips, device=index.device)
    is_alive = rank < decode.budgets[1][:, None]
    places = index // topk  # each branch has `topk` children
    depths = torch.full_like(index, depth - 1)
    return Frontier(
        scores=torch.where(is_alive, scores, float("-inf")),
        numbers=first_number(depth, topk) + index,
        places=places,
        positions=(decode.lengths + depth + 1)[:, None].expand_as(index),
        nodes=DraftTree(
            tokens=level.tokens.gather(1, index),
            parents=depths,
            depths=depths,
            ancestors=tips.nodes.ancestors.gather(1, places) | slots.own_bits(depth, index.device),
        ),
    )


def select(
    root: torch.Tensor, candidates: Candidates, budgets: torch.Tensor, tree: Budget
) -> DraftTree:
    """The tree of the best candidates, as many as each row's budget allows; `root` is [rows].

    Of equally good ones the lower number is better, here as in every frontier.
    """
    scores, tokens, parents = candidates.scores, candidates.tokens, candidates.parents
    if scores.is_cuda:
        from outrider.ops.tree.grow_tree_triton import select_nodes

        columns = select_nodes(
            root, (scores, tokens, parents), budgets, nodes=tree.nodes, steps=tree.steps
        )
        return DraftTree(**dict(zip(_COLUMNS, columns, strict=True)))
    num_candidates = scores.shape[1]
    best, order = scores.sort(dim=1, descending=True, stable=True)
    most = min(tree.nodes - 1, num_candidates)
    rank = torch.arange(most, device=order.device)
    is_present = (rank < budgets[2][:, None] - 1) & (best[:, :most] > float("-inf"))
    index = torch.where(is_present, order[:, :most], num_candidates)
    chosen = index.sort(dim=1).values  # absent ones last
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
