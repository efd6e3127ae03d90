"""Random proposals of slots, and all trees over them by enumeration."""

import itertools
import random
from typing import Any

import torch

from outrider.ops.tree.best_tree import best_tree_reference
from outrider.ops.tree.best_tree_triton import best_tree_triton
from outrider.ops.tree.candidates import Candidates, SlotTokens, TreeLevel
from outrider.ops.tree.grow_level import grow_level_reference
from outrider.ops.tree.grow_level_triton import grow_level_triton
from outrider.spec.slot_candidates import tip_widths
from outrider.wire.draft_budget import Budget
from support.step_kernels import (
    assert_same,
    moved,
    node_0,
    random_decode_rows,
    random_likely,
)

Path = tuple[int, ...]
STEP_COST = 1e-3


def random_slots(generator: torch.Generator, *, rows: int, steps: int, topk: int) -> SlotTokens:
    logits = 2 * torch.randn(rows, steps, topk + 3, generator=generator)
    best = logits.log_softmax(-1).topk(topk, dim=-1)
    order = torch.rand(rows, steps, 90, generator=generator).argsort(-1)[..., :topk]
    return SlotTokens(logprobs=best.values.contiguous(), tokens=order.contiguous())


def all_paths(slots: SlotTokens, row: int, budget: Budget) -> dict[Path, float]:
    """The score of every path within a budget, by its tokens."""
    found: dict[Path, float] = {}
    frontier: dict[Path, float] = {(): 0.0}
    for depth in range(min(budget.steps, slots.tokens.shape[1])):
        values, tokens = (x[row, depth].tolist() for x in (slots.logprobs, slots.tokens))
        children = list(zip(tokens, values, strict=True))[: budget.topk]
        frontier = {
            (*path, token): score + value - STEP_COST
            for path, score in frontier.items()
            for token, value in children
        }
        found |= frontier
    return found


def budgets_of(rows: list[Budget]) -> torch.Tensor:  # [3, rows]
    return torch.tensor([[each.steps, each.topk, each.nodes] for each in rows]).T.contiguous()


def paths_of(candidates: Candidates, row: int) -> dict[Path, float]:
    """The paths of a row's candidates that are there, with their scores, best first."""
    scores, tokens, parents = (
        x[row].tolist() for x in (candidates.scores, candidates.tokens, candidates.parents)
    )
    paths: list[Path] = []
    for number, (score, token, parent) in enumerate(zip(scores, tokens, parents, strict=True)):
        assert parent < number, "a parent comes before its children"
        if score == float("-inf"):
            assert (token, parent) == (0, -1)
            break
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    assert all(score == float("-inf") for score in scores[len(paths) :])
    assert all(a >= b for a, b in itertools.pairwise(scores))
    assert len(set(paths)) == len(paths)
    return dict(zip(paths, scores, strict=False))


def check_best_tree(seed: int, device: str) -> None:
    """The kernel against the reference: any sizes, equal scores, no numbers, rows of any budget."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    nodes, steps = rng.choice([2, 3, 9, 17, 33, 64]), rng.randint(1, 9)
    rows = rng.choice([1, 2, 7]) if nodes < 20 else 1  # the interpreter is slow
    topk = rng.randint(1, 7)
    slots = random_slots(generator, rows=rows, steps=steps, topk=topk)
    if rng.random() < 0.3:  # equal scores
        slots.logprobs.copy_(slots.logprobs.round())
    if rng.random() < 0.3:  # a slot without numbers, or with a few tokens
        first = torch.randint(0, 2 * topk, (rows, steps, 1), generator=generator)
        first = torch.where(torch.rand(first.shape, generator=generator) < 0.2, 0, first)
        is_bad = torch.arange(topk) >= first
        slots.logprobs.masked_fill_(is_bad, rng.choice([float("nan"), float("-inf")]))
    budgets = budgets_of(
        [
            Budget(steps=rng.randint(0, steps), topk=rng.randint(1, topk), nodes=nodes)
            for _ in range(rows)
        ]
    )
    right = best_tree_reference(slots, budgets, num_drafts=nodes - 1)
    found = best_tree_triton(moved(slots, device), budgets.to(device), num_drafts=nodes - 1)
    assert_same(found, right)


def check_wide_growth(seed: int, device: str, *, grow: Any = grow_level_triton) -> None:
    """Levels whose tips are as many as can be in the best tree, whatever the budgets of rows."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    steps, topk = rng.randint(1, 5), rng.randint(1, 4)
    tree = Budget(steps=steps, topk=topk, nodes=rng.choice([2, 7, 16, 33]))
    decode = random_decode_rows(rng, tree)
    there, tips = moved(decode, device), node_0(decode.rows + 500, decode.lengths)
    found_tips, widths, first = moved(tips, device), tip_widths(tree, len(decode.rows)), 0
    for depth, width in enumerate(widths, start=1):
        level = TreeLevel(
            depth=depth,
            first_number=first,
            first_node=0,
            num_tips=widths[depth] if depth < steps else 0,
            is_wide=True,
        )
        likely = random_likely(generator, tips.scores.numel(), topk)
        size = len(decode.rows), width * topk
        right = Candidates(
            scores=torch.empty(size),
            tokens=torch.empty(size).long(),
            parents=torch.ones(size).long(),
        )
        found = moved(right, device)
        found_tips = grow(found_tips, moved(likely, device), there, candidates=found, level=level)
        tips = grow_level_reference(tips, likely, decode, candidates=right, level=level)
        assert_same(found, right, f"level {depth}")
        if level.num_tips:
            assert_same(found_tips, tips, f"tips {depth}")
        first += width * topk
