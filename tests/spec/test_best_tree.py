"""The tree over a block has the best nodes of all trees, by enumerating every path."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.block_trees import all_paths, budgets_of, paths_of, random_slots

from outrider.ops.tree.best_tree import best_tree
from outrider.ops.tree.select_nodes import select_nodes
from outrider.spec.slot_candidates import tip_widths
from outrider.wire.draft_budget import Budget

budgets = st.builds(
    Budget, steps=st.integers(1, 5), topk=st.integers(1, 4), nodes=st.integers(2, 24)
)


@settings(max_examples=80, deadline=None)
@given(rows=st.lists(budgets, min_size=1, max_size=4), seed=st.integers(0, 999))
def test_every_row_gets_the_best_nodes_of_its_own_budget(rows, seed):
    slots = random_slots(
        torch.Generator().manual_seed(seed),
        rows=len(rows),
        steps=max(each.steps for each in rows),
        topk=max(each.topk for each in rows),
    )
    num_drafts = max(each.nodes for each in rows) - 1
    found = best_tree(slots, budgets_of(rows), num_drafts=num_drafts)
    for row, budget in enumerate(rows):
        scores = all_paths(slots, row, budget)
        best = sorted(scores, key=lambda path: -scores[path])[:num_drafts]
        paths = paths_of(found, row)
        assert list(paths) == best
        for path in best:
            assert paths[path] == pytest.approx(scores[path], abs=1e-4)


def test_every_node_may_have_children():
    """Of two equally likely tokens in every slot, a beam of two tips would grow 2 + 4 + 4 nodes."""
    slots = random_slots(torch.Generator().manual_seed(0), rows=1, steps=3, topk=2)
    slots.logprobs.fill_(-0.7)
    budget = budgets_of([Budget(steps=3, topk=2, nodes=15)])
    found = best_tree(slots, budget, num_drafts=14)
    assert sorted(map(len, paths_of(found, 0))) == [1] * 2 + [2] * 4 + [3] * 8


def test_a_row_with_fewer_nodes_gets_the_best_of_them():
    slots = random_slots(torch.Generator().manual_seed(1), rows=1, steps=4, topk=3)
    budget, root = budgets_of([Budget(steps=4, topk=3, nodes=5)]), torch.tensor([7])
    candidates = best_tree(slots, budget, num_drafts=11)
    tree = select_nodes(root, candidates, budget, Budget(steps=4, topk=3, nodes=12)).tree
    first = [token for (*_, token) in list(paths_of(candidates, 0))[:4]]
    assert tree.tokens[0].tolist() == [7, *first, *[-1] * 7]


@pytest.mark.parametrize(
    ("tree", "rows", "widths"),
    [
        (Budget(steps=5, topk=3, nodes=16), 1, [1, 3, 9, 12, 11]),  # as many as a tree can have
        (Budget(steps=5, topk=3, nodes=16), 64, [1, 3, 4, 4, 4]),
        (Budget(steps=3, topk=8, nodes=32), 200, [1, 8, 8]),  # topk at least
        (Budget(steps=15, topk=60, nodes=64), 1, [1] + [4] * 14),
        (Budget(steps=4, topk=2, nodes=3), 1, [1, 1, 1, 1]),
    ],
)
def test_as_many_nodes_grow_as_have_room(tree, rows, widths):
    assert tip_widths(tree, rows) == widths
