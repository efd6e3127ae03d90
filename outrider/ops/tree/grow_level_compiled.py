"""`grow_level` on a CPU, in one compiled call instead of about 40 small operations."""

import torch

from outrider.ops.compiled.grown_trees import (
    NUMBERS,
    PARENT_TIPS,
    POSITIONS,
    TIP_ANCESTORS,
    TIP_DEPTHS,
    TIP_TOKENS,
    grow_tree_level,
)
from outrider.ops.compiled.thread_team import run_alone
from outrider.ops.graph_break import graph_break
from outrider.ops.sampling.top_tokens import TopTokens
from outrider.ops.tree.candidates import Candidates, Frontier, TreeLevel
from outrider.ops.tree.draft_tree import DraftTree
from outrider.ops.tree.plan_rows import DecodeRows

_FUNCTION = int(grow_tree_level.address)


def grow_level_compiled(
    tips: Frontier,
    top: TopTokens,
    decode: DecodeRows,
    *,
    candidates: Candidates,  # of this level; written
    level: TreeLevel,
) -> Frontier:
    rows, num_tips = tips.scores.shape[0], level.num_tips
    scores = tips.scores.new_empty(rows, num_tips)
    known = tips.numbers.new_empty(6, rows, num_tips)
    graph_break(_grow, tips, top, decode, candidates, level, scores, known)
    if not num_tips:
        return tips
    parts = known.unbind(0)
    return Frontier(
        scores=scores,
        numbers=parts[NUMBERS],
        parent_tips=parts[PARENT_TIPS],
        positions=parts[POSITIONS],
        nodes=DraftTree(
            tokens=parts[TIP_TOKENS],
            parents=parts[TIP_DEPTHS],
            depths=parts[TIP_DEPTHS],
            ancestors=parts[TIP_ANCESTORS],
        ),
    )


def _grow(
    tips: Frontier,
    top: TopTokens,
    decode: DecodeRows,
    candidates: Candidates,
    level: TreeLevel,
    scores: torch.Tensor,  # [rows, next] written
    known: torch.Tensor,  # [6, rows, next] written
) -> None:
    of_tips = tips.scores, tips.numbers, tips.nodes.ancestors
    written = candidates.scores, candidates.tokens, candidates.parents, scores, known
    assert top.tokens.is_contiguous(), "kernels read dense tokens"
    assert top.logprobs.is_contiguous(), "likewise"
    budgets = decode.budgets if decode.budgets.stride(1) == 1 else decode.budgets.contiguous()
    sizes = *tips.scores.shape, top.tokens.shape[1], level.depth, level.first_number
    strides = (candidates.scores, *of_tips, budgets)
    tensors = *of_tips, top.logprobs, top.tokens, budgets, decode.lengths, *written
    given = (
        *(*sizes, level.first_node, level.num_tips),
        *(tensor.stride(0) for tensor in strides),
        *(tensor.data_ptr() for tensor in tensors),
        int(level.is_wide),
    )
    run_alone(_FUNCTION, given)
