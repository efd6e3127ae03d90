"""One tree from two proposers: the candidates of a draft model, and paths out of known texts.

A path follows the candidates of the model as long as these have its tokens. Its other nodes become
candidates of their own, numbered after those of the model, so a parent still has a smaller number
than its children, and no node has two children with the same token.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from outrider.ops.tree.candidates import Candidates
from outrider.spec.text_lookup import FoundPaths, join_paths

_NEXT = math.log(0.9)  # the next token of a path whose tokens so far were accepted
_DOUBT = 6.0  # tokens: a match of so many is right half of the time, until it is measured
NUM_SOURCES = 3  # of a candidate
_MODEL, _TEXT, _BOTH = range(NUM_SOURCES)


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedCandidates:
    """Candidates of both proposers; each node once."""

    candidates: Candidates
    sources: torch.Tensor  # [rows, width] int64: the model, a text, or both


@dataclass(frozen=True, slots=True, kw_only=True)
class _PathNodes:
    """The nodes of all paths. `chances` are logarithms, given that the parent is accepted."""

    tokens: torch.Tensor  # [rows, num, steps]
    chances: torch.Tensor  # [rows, num, steps]
    first: torch.Tensor  # [rows, num, steps] the first path that has this node
    is_known: torch.Tensor  # [rows, num, steps] not after the end of a text


def graft(
    model: Candidates,
    levels: Sequence[slice],  # numbers of the model's candidates by depth
    found: FoundPaths,
    budgets: torch.Tensor,  # [3, rows]
) -> MergedCandidates:
    """The candidates of the model, and the nodes of the paths that it does not have."""
    nodes, width = _path_nodes(found), model.scores.shape[1]
    num = nodes.tokens.shape[1]
    order = torch.arange(num, device=nodes.tokens.device)
    above = torch.full_like(nodes.first[..., 0], -1)  # [rows, num] number of each path's node
    above_score = torch.zeros_like(nodes.chances[..., 0])
    sources, scores, parents = torch.zeros_like(model.parents), [model.scores], [model.parents]
    for i in range(nodes.tokens.shape[2]):
        first, is_known = nodes.first[..., i], nodes.is_known[..., i]
        number = width + num * i + first
        score = above_score + nodes.chances[..., i]
        is_new = is_known & (first == order) & (i < budgets[0][:, None])
        if i < len(levels):
            hits = _same_nodes(model, levels[i], nodes.tokens[..., i], above)
            hits = hits & is_known[:, :, None]
            sources[:, levels[i]] += _BOTH * hits.any(1)
            is_hit, hit = hits.any(2), levels[i].start + hits.long().argmax(2)
            number, is_new = number.where(~is_hit, hit), is_new & ~is_hit
            score = score.where(~is_hit, model.scores.gather(1, hit))
        scores.append(score.where(is_new, float("-inf")))
        parents.append(above)
        above, above_score = number, score
    tokens = torch.cat([model.tokens, nodes.tokens.transpose(1, 2).flatten(1)], dim=1)
    return MergedCandidates(
        candidates=Candidates(
            scores=torch.cat(scores, 1), tokens=tokens, parents=torch.cat(parents, 1)
        ),
        sources=functional.pad(sources, (0, tokens.shape[1] - width), value=_TEXT),
    )


def _same_nodes(
    model: Candidates,
    level: slice,
    tokens: torch.Tensor,  # [rows, num] of each path at this depth
    above: torch.Tensor,  # [rows, num] number of the parent of each
) -> torch.Tensor:  # [rows, num, level] bool
    """Which candidates of the model are the nodes of which paths."""
    is_same = (model.tokens[:, None, level] == tokens[:, :, None]) & (
        model.parents[:, None, level] == above[:, :, None]
    )
    return is_same & (model.scores[:, None, level] > float("-inf"))


def _path_nodes(found: FoundPaths) -> _PathNodes:
    """The chance of a node: the share of the paths through its parent that go through it, too."""
    joined = join_paths(found)
    weights = joined.weights.clamp_min(1e-9).log()
    total = found.weights.sum(1, keepdim=True).clamp_min(1e-9).log()  # [rows, 1]
    longest = found.longest[:, None].float()
    begin = (longest / (longest + _DOUBT)).clamp_min(1e-9).log()
    chances = weights - functional.pad(weights[..., :-1], (1, 0))
    chances[..., 0] += begin - total  # a longer match is right more often
    chances[..., 1:] += _NEXT
    is_known = (found.paths >= 0).cumprod(2).bool() & (found.weights > 0)[:, :, None]
    return _PathNodes(tokens=found.paths, chances=chances, first=joined.first, is_known=is_known)


def limit_children_(
    candidates: Candidates,  # scores are written
    topk: torch.Tensor,  # [rows]
    *,
    steps: int,
) -> None:
    """Rule out all but the best `topk` children of every node, and what is below the others."""
    scores, parents = candidates.scores, candidates.parents
    number = torch.arange(scores.shape[1], device=scores.device)
    is_better = scores[:, None] > scores[:, :, None]
    is_earlier = (scores[:, None] == scores[:, :, None]) & (number < number[:, None])
    same_parent = parents[:, None] == parents[:, :, None]
    is_allowed = (same_parent & (is_better | is_earlier)).sum(2) < topk[:, None]
    above, is_first = parents.clamp_min(0), parents < 0
    own = is_allowed
    for _ in range(steps - 1):  # each pass reaches one level deeper
        is_allowed = own & (is_allowed.gather(1, above) | is_first)
    scores.masked_fill_(~is_allowed, float("-inf"))
