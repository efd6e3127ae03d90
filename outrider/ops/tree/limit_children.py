"""At most so many children of every node of a draft tree: the best ones."""

import torch

from outrider.ops.compiled.why_not_compiled import is_compiled
from outrider.ops.tree.candidates import Candidates

_COMPILED = "outrider.ops.compiled.draft_chances"


def limit_children_(
    candidates: Candidates,  # scores are written
    topk: torch.Tensor,  # [rows]
    *,
    steps: int,
) -> None:
    """Rule out all but the best `topk` children of every node, and what is below the others."""
    if is_compiled(candidates.scores, _COMPILED):
        from outrider.ops.tree.limit_children_compiled import limit_children_compiled_

        limit_children_compiled_(candidates, topk, steps=steps)
        return
    limit_children_reference_(candidates, topk, steps=steps)


def limit_children_reference_(candidates: Candidates, topk: torch.Tensor, *, steps: int) -> None:
    """The same in plain torch."""
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
