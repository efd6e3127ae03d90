"""The drafts of a step go to the best candidates of all rows."""

import random

import pytest
import torch

from outrider.ops.tree.candidates import Candidates
from outrider.ops.tree.select_nodes import select_nodes
from outrider.ops.tree.share_nodes import share_nodes
from outrider.wire.draft_budget import Budget

EASY, HARD = 0.9, 0.3  # chances that the next draft of a path is accepted


def chains(rates: list[float], steps: int) -> Candidates:
    """A chain for each row, whose drafts are accepted at a rate of their own."""
    depth = torch.arange(1, steps + 1)
    scores = torch.tensor(rates).log()[:, None] * depth
    parents = (depth - 2).expand_as(scores)
    return Candidates(scores=scores, tokens=depth.expand_as(scores), parents=parents.contiguous())


def random_tree(rng: random.Random, rows: int, width: int) -> Candidates:
    """Candidates below each other or below node 0; a child scores below its parent."""
    parents = [[rng.randint(-1, number - 1) for number in range(width)] for _ in range(rows)]
    scores = torch.zeros(rows, width)
    for row, above in enumerate(parents):
        for number, parent in enumerate(above):
            start = scores[row, parent] if parent >= 0 else 0.0
            scores[row, number] = start - rng.uniform(0.01, 2.0)
    tokens = torch.arange(width).expand(rows, width)
    return Candidates(scores=scores, tokens=tokens, parents=torch.tensor(parents))


def budgets_of(budget: Budget, rows: int) -> torch.Tensor:
    own = torch.tensor([budget.steps, budget.topk, budget.nodes])
    return own[:, None].expand(3, rows).contiguous()


def emitted(candidates: Candidates, nodes: torch.Tensor) -> float:
    """Tokens that a step emits on average, if the best of each row's candidates are verified."""
    best = candidates.scores.exp().sort(dim=1, descending=True).values
    is_verified = torch.arange(best.shape[1]) < nodes[:, None] - 1
    return float(len(best) + (best * is_verified).sum())


def test_easy_rows_get_the_drafts_that_hard_rows_would_waste():
    candidates, budget = chains([EASY] * 4 + [HARD] * 4, 6), Budget(steps=6, topk=1, nodes=7)
    shares = share_nodes(candidates, budgets_of(budget, 8), most=6, num_drafts=24)[2]
    assert int(shares.sum()) == 8 + 24  # as many query tokens as three drafts for each row
    assert shares[:4].min() > shares[4:].max()
    alike = torch.full((8,), 4)
    assert emitted(candidates, shares) > 1.2 * emitted(candidates, alike)


def test_a_hard_row_does_not_reduce_the_drafts_of_others():
    budget = Budget(steps=6, topk=1, nodes=7)
    hard = chains([EASY, *[HARD] * 7], 6)
    assert share_nodes(hard, budgets_of(budget, 8), most=6, num_drafts=8)[2][0] == 7


@pytest.mark.parametrize("seed", range(6))
def test_no_choice_of_as_many_drafts_has_a_better_score(seed):
    rng, rows, width = random.Random(seed), 5, 8
    candidates, budget = random_tree(rng, rows, width), Budget(steps=8, topk=8, nodes=9)
    num_drafts = rng.randint(1, rows * width)
    shares = share_nodes(candidates, budgets_of(budget, rows), most=width, num_drafts=num_drafts)[2]
    best = candidates.scores.exp().flatten().sort(descending=True).values[:num_drafts].sum()
    assert emitted(candidates, shares) == pytest.approx(rows + float(best))


@pytest.mark.parametrize("seed", range(6))
def test_the_parents_of_a_chosen_node_are_chosen(seed):
    rng, rows, width = random.Random(seed), 4, 12
    candidates, budget = random_tree(rng, rows, width), Budget(steps=12, topk=12, nodes=13)
    shares = share_nodes(candidates, budgets_of(budget, rows), most=width, num_drafts=17)
    tree = select_nodes(torch.full((rows,), 99), candidates, shares, budget).tree
    for row in range(rows):
        for node, token in enumerate(tree.tokens[row].tolist()):
            if node and token >= 0:
                parent = int(candidates.parents[row, token])
                right = 99 if parent < 0 else parent
                assert int(tree.tokens[row, tree.parents[row, node]]) == right


def test_no_row_gets_more_than_its_own_budget():
    candidates, budget = chains([0.99, 0.5, 0.4], 6), Budget(steps=6, topk=1, nodes=7)
    budgets = budgets_of(budget, 3)
    budgets[2, 0] = 2
    assert share_nodes(candidates, budgets, most=6, num_drafts=9)[2].tolist() == [2, 6, 4]


def test_candidates_that_a_budget_rules_out_get_nothing():
    candidates, budget = chains([EASY, HARD], 4), Budget(steps=4, topk=1, nodes=5)
    candidates.scores[0, 2:] = float("-inf")  # deeper than its steps
    assert share_nodes(candidates, budgets_of(budget, 2), most=4, num_drafts=8)[2].tolist() == [
        3,
        5,
    ]
