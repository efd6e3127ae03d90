"""One tree from two proposers: the candidates of a draft model, and paths out of known texts.

A path follows the candidates of the model as long as these have its tokens. Its other nodes become
candidates of their own, numbered after those of the model, so a parent still has a smaller number
than its children, and no node has two children with the same token.
"""

import math
from dataclasses import dataclass

import torch
from torch.nn import functional

from outrider.ops.compiled.why_not_compiled import is_compiled
from outrider.ops.tree.candidates import Candidates
from outrider.ops.tree.text_paths import FoundPaths, join_paths

_COMPILED = "outrider.ops.compiled.grafted_paths"
# A node that the model does not have, where tokens are drawn: the model knows the noise of the
# draw, and a text does not. Measured.
SAMPLED = math.log(0.3)
# Tokens: a match of so many is right half of the time, until it is measured. After a token of its
# path was accepted, a shorter one is.
DOUBT, LATER_DOUBT = 8.0, 1.5
NUM_SOURCES = 3  # of a candidate
_MODEL, _TEXT, _BOTH = range(NUM_SOURCES)


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedCandidates:
    """Candidates of both proposers; each node once."""

    candidates: Candidates
    sources: torch.Tensor  # [rows, width] int64: the model, a text, or both


@dataclass(frozen=True, slots=True, kw_only=True)
class _PathNodes:
    """The nodes of all paths."""

    tokens: torch.Tensor  # [rows, num, steps]
    path_scores: torch.Tensor  # [rows, num, steps] logarithm of the chance of each path so far
    first: torch.Tensor  # [rows, num, steps] the first path that has this node
    is_known: torch.Tensor  # [rows, num, steps] not after the end of a text


def graft(
    model: Candidates,  # a parent before its children
    found: FoundPaths,
    budgets: torch.Tensor,  # [3, rows]
    is_sampled: torch.Tensor,  # [rows] int64: 1 where tokens are drawn, 0 where the best is taken
    *,
    steps: int,  # depth of the model's candidates at most
) -> MergedCandidates:
    """The candidates of the model, and the nodes of the paths that it does not have."""
    if is_compiled(model.scores, _COMPILED):
        from outrider.ops.tree.graft_paths_compiled import graft_compiled

        return graft_compiled(model, found, budgets, is_sampled)
    return graft_reference(model, found, budgets, is_sampled, steps=steps)


def graft_reference(
    model: Candidates,
    found: FoundPaths,
    budgets: torch.Tensor,
    is_sampled: torch.Tensor,
    *,
    steps: int,
) -> MergedCandidates:
    """The same in plain torch."""
    nodes, width = _path_nodes(found), model.scores.shape[1]
    num, longest = nodes.tokens.shape[1:]
    depths = _depths(model, steps)
    hits = _same_nodes(model, depths, nodes, steps)  # [rows, num, width]
    shared = _numbers_of(hits, depths, longest)
    depth = torch.arange(longest, device=shared.device)
    is_hit = shared >= 0  # [rows, num, steps]
    numbers = shared.where(is_hit, width + num * depth + nodes.first)
    parents = functional.pad(numbers[..., :-1], (1, 0), value=-1)
    is_first = nodes.first == torch.arange(num, device=shared.device)[:, None]
    is_new = nodes.is_known & is_first & ~is_hit & (depth < budgets[0][:, None, None])
    num_own = (depth + 1 - is_hit.sum(2, keepdim=True)).clamp_min(0)  # of a path, so far
    scores = nodes.path_scores + num_own * (SAMPLED * is_sampled[:, None, None])
    scores = (scores + _score_of_hits(model, nodes, shared)).where(is_new, float("-inf"))
    new = (x.transpose(1, 2).flatten(1) for x in (scores, nodes.tokens, parents))
    pairs = zip((model.scores, model.tokens, model.parents), new, strict=True)
    scores, tokens, parents = (torch.cat(pair, dim=1) for pair in pairs)
    sources = functional.pad(_BOTH * hits.any(1).long(), (0, num * longest), value=_TEXT)
    return MergedCandidates(
        candidates=Candidates(scores=scores, tokens=tokens, parents=parents), sources=sources
    )


def _depths(model: Candidates, steps: int) -> torch.Tensor:  # [rows, width] int64
    """The depth of each candidate; 0 for the children of node 0."""
    above, is_first = model.parents.clamp_min(0), model.parents < 0
    depths = torch.zeros_like(above)
    for _ in range(steps - 1):  # each pass reaches one level deeper
        depths = (depths.gather(1, above) + 1).masked_fill(is_first, 0)
    return depths


def _same_nodes(
    model: Candidates,
    depths: torch.Tensor,  # [rows, width]
    nodes: _PathNodes,
    steps: int,
) -> torch.Tensor:  # [rows, num, width] bool
    """Which candidates of the model are nodes of which paths: all tokens up to them are equal."""
    tokens = nodes.tokens.where(nodes.is_known, -1)
    longest = tokens.shape[2]
    index = depths.clamp_max(longest - 1)[:, None].expand(-1, tokens.shape[1], -1)
    is_allowed = (model.scores > float("-inf")) & (depths < longest)
    is_same = (tokens.gather(2, index) == model.tokens[:, None]) & is_allowed[:, None]
    above = model.parents.clamp_min(0)[:, None].expand_as(is_same)
    is_first = (model.parents < 0)[:, None]
    same_path = is_same
    for _ in range(steps - 1):  # each pass reaches one level deeper
        same_path = is_same & (same_path.gather(2, above) | is_first)
    return same_path


def _numbers_of(
    hits: torch.Tensor,  # [rows, num, width]
    depths: torch.Tensor,  # [rows, width]
    longest: int,  # steps of a path
) -> torch.Tensor:  # [rows, num, longest]
    """The candidate of the model that is the node of each path at each depth, or -1.

    There is at most one, because no node has two children with the same token.
    """
    marked = hits * torch.arange(1, hits.shape[2] + 1, device=hits.device)
    index = depths.clamp_max(longest - 1)[:, None].expand_as(marked)
    numbers = marked.new_zeros(*hits.shape[:2], longest)
    return numbers.scatter_add_(2, index, marked) - 1


def _score_of_hits(
    model: Candidates, nodes: _PathNodes, shared: torch.Tensor
) -> torch.Tensor:  # [rows, num, 1]
    """What to add to the scores of a path: the model's score of the last node that it has, too."""
    num_shared = (shared >= 0).sum(2, keepdim=True)  # the nodes above it are shared as well
    last = (num_shared - 1).clamp_min(0)
    number = shared.gather(2, last).clamp_min(0).squeeze(2)
    own = model.scores.gather(1, number)[..., None] - nodes.path_scores.gather(2, last)
    return own.where(num_shared > 0, 0.0)


def _trust(longest: torch.Tensor, steps: int) -> torch.Tensor:  # [rows] -> [rows, steps]
    """The logarithm of the chance of each token of a path after the one before: a longer match is
    right more often, and grows with every token that is accepted.
    """
    depth = torch.arange(steps, device=longest.device)
    matched = longest[:, None].float() + depth
    doubt = torch.where(depth > 0, LATER_DOUBT, DOUBT)
    return (matched / (matched + doubt)).clamp_min(1e-9).log()


def _path_nodes(found: FoundPaths) -> _PathNodes:
    """The chance of a node: the share of the paths through its parent that go through it, too."""
    joined = join_paths(found)
    weights = joined.weights.clamp_min(1e-9).log()
    total = found.weights.sum(1, keepdim=True).clamp_min(1e-9).log()  # [rows, 1]
    chances = weights - functional.pad(weights[..., :-1], (1, 0))
    chances[..., 0] -= total
    chances += _trust(found.longest, chances.shape[2])[:, None]
    is_known = (found.paths >= 0).cumprod(2).bool() & (found.weights > 0)[:, :, None]
    return _PathNodes(
        tokens=found.paths, path_scores=chances.cumsum(2), first=joined.first, is_known=is_known
    )
