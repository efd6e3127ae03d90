"""One level of a draft tree: the children of all tips become candidates, the best the next tips."""

import torch

from outrider.ops.compiled.why_not_compiled import is_compiled
from outrider.ops.sampling.top_tokens import TopTokens
from outrider.ops.tree.candidates import Candidates, Frontier, TreeLevel
from outrider.ops.tree.draft_tree import DraftTree
from outrider.ops.tree.plan_rows import DecodeRows

_COMPILED = "outrider.ops.compiled.grown_trees"
STEP_COST = 1e-3  # of two nodes that are equally likely, the shallower one is selected first


def grow_level(
    tips: Frontier,
    top: TopTokens,  # of n = rows * branches: the most likely tokens after each branch
    decode: DecodeRows,
    *,
    candidates: Candidates,  # of this level; written
    level: TreeLevel,
) -> Frontier:
    """The next tips. At the last depth, `num_tips` is 0 and the result means nothing."""
    if tips.scores.is_cuda:
        from outrider.ops.tree.grow_level_triton import grow_level_triton

        return grow_level_triton(tips, top, decode, candidates=candidates, level=level)
    if is_compiled(tips.scores, _COMPILED):
        from outrider.ops.tree.grow_level_compiled import grow_level_compiled

        return grow_level_compiled(tips, top, decode, candidates=candidates, level=level)
    return grow_level_reference(tips, top, decode, candidates=candidates, level=level)


def child_scores(
    scores: torch.Tensor,  # of parents
    logprobs: torch.Tensor,  # of children; both are broadcast
) -> torch.Tensor:
    """A child scores strictly below its parent, however large the scores. With equal scores the
    child could be selected without its parent.
    """
    ceiling = torch.nextafter(scores, torch.full_like(scores, float("-inf")))
    return torch.minimum(scores + logprobs - STEP_COST, ceiling)


def grow_level_reference(
    tips: Frontier,
    top: TopTokens,
    decode: DecodeRows,
    *,
    candidates: Candidates,  # written
    level: TreeLevel,
) -> Frontier:
    """The same in plain torch."""
    _expand(tips, top, decode.budgets, candidates=candidates, depth=level.depth)
    if not level.num_tips:
        return tips
    return _best_tips(tips, candidates, decode, level=level, topk=top.tokens.shape[1])


def _expand(
    tips: Frontier,
    top: TopTokens,
    budgets: torch.Tensor,  # [3, rows]
    *,
    candidates: Candidates,  # written
    depth: int,
) -> None:
    """Write the children of a frontier: the `topk` most likely of each branch."""
    scores, topk = tips.scores, top.tokens.shape[1]
    values = top.logprobs.view(*scores.shape, topk)  # [rows, branches, topk]
    steps, own_topk, _ = budgets[:, :, None, None]
    rank = torch.arange(topk, device=scores.device)
    is_allowed = (rank < own_topk) & (depth <= steps) & ~values.isnan()  # [rows, branches, topk]
    joint = child_scores(scores[:, :, None], values)
    candidates.scores.view_as(joint).copy_(torch.where(is_allowed, joint, float("-inf")))
    candidates.tokens.copy_(top.tokens.view_as(candidates.tokens))
    candidates.parents.view_as(joint).copy_(tips.numbers[:, :, None].expand_as(joint))


def _best_tips(
    tips: Frontier, candidates: Candidates, decode: DecodeRows, *, level: TreeLevel, topk: int
) -> Frontier:
    """The best candidates of a level. Unless it is wide, those past a row's own topk score -inf."""
    num_tips, depth = level.num_tips, level.depth
    best, order = candidates.scores.sort(dim=1, descending=True, stable=True)
    scores, index = best[:, :num_tips], order[:, :num_tips]
    rank = torch.arange(num_tips, device=index.device)
    is_alive = (rank < decode.budgets[1][:, None]) | level.is_wide
    parent_tips = index // topk  # each branch has `topk` children
    depths = torch.full_like(index, depth - 1)
    node = rank + level.first_node
    own_bits = torch.ones_like(node) << node
    return Frontier(
        scores=torch.where(is_alive, scores, float("-inf")),
        numbers=level.first_number + index,
        parent_tips=parent_tips,
        positions=(decode.lengths + depth + 1)[:, None].expand_as(index),
        nodes=DraftTree(
            tokens=candidates.tokens.gather(1, index),
            parents=depths,
            depths=depths,
            ancestors=tips.nodes.ancestors.gather(1, parent_tips) | own_bits,
        ),
    )
