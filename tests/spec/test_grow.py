"""The tree builder against a naive beam over a toy table of log-probabilities."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.plan.tree import DraftTree
from outrider.spec.grow import Level, advance_frontier, expand, select
from outrider.spec.slots import DraftSlots
from outrider.wire.speculation import Budget

VOCAB = 7


def toy_logprobs(path: tuple[int, ...], seed: int) -> torch.Tensor:
    """The law of the next token after a path, made up from the path itself."""
    generator = torch.Generator().manual_seed(hash((seed, *path)) % 2**31)
    return (torch.randn(VOCAB, generator=generator) * 2).log_softmax(0)


def grown(tree: Budget, budgets: list[Budget], seed: int) -> DraftTree:
    """The tree of every row, grown the way a drafter grows it, on the toy law."""
    columns = torch.tensor([[b.steps, b.topk, b.nodes] for b in budgets]).T
    rows = len(budgets)
    paths = [[()] for _ in range(rows)]
    scores, numbers = torch.zeros(rows, 1), torch.full((rows, 1), -1)
    levels: list[Level] = []
    for depth in range(1, tree.steps + 1):
        if depth > 1:
            first = sum(level.tokens.shape[1] for level in levels[:-1])
            tips = advance_frontier(levels[-1], columns, topk=tree.topk, first_number=first)
            paths = [
                [
                    (*paths[r][place], token - 100)
                    for place, token in zip(
                        tips.places[r].tolist(), tips.tokens[r].tolist(), strict=True
                    )
                ]
                for r in range(rows)
            ]
            scores, numbers = tips.scores, tips.numbers
        logprobs = torch.stack(
            [torch.stack([toy_logprobs(path, seed) for path in row]) for row in paths]
        )
        levels.append(
            expand(
                scores,
                numbers,
                logprobs,
                columns,
                topk=tree.topk,
                depth=depth,
                target_ids=torch.arange(VOCAB) + 100,
            )
        )
    return select(torch.arange(rows), levels, columns, tree)


def naive_paths(budget: Budget, seed: int) -> set[tuple[int, ...]]:
    """The paths of a row's tree by a beam in plain Python: all candidates, the best nodes kept."""
    frontier, pool = [((), 0.0)], []
    for _ in range(budget.steps):
        children = []
        for path, score in frontier:
            values, tokens = toy_logprobs(path, seed).topk(budget.topk)
            for value, token in zip(values.tolist(), tokens.tolist(), strict=True):
                children.append(((*path, token), score + value - 1e-3))
        pool += children
        frontier = sorted(children, key=lambda child: -child[1])[: budget.topk]
    best = sorted(pool, key=lambda child: -child[1])[: budget.nodes - 1]
    return {path for path, _ in best}


def paths_of(tree: DraftTree, row: int) -> set[tuple[int, ...]]:
    tokens, parents = tree.tokens[row].tolist(), tree.parents[row].tolist()
    paths = {0: ()}
    for node in range(1, len(tokens)):
        if tokens[node] >= 0:
            assert parents[node] < node, "a parent precedes its children"
            paths[node] = (*paths[parents[node]], tokens[node] - 100)
            assert tree.depths[row, node] == len(paths[node])
            mask = sum(1 << n for n, path in paths.items() if paths[node][: len(path)] == path)
            assert tree.ancestors[row, node] == mask
    return set(paths.values()) - {()}


budgets = st.builds(
    Budget, steps=st.integers(1, 5), topk=st.integers(1, 4), nodes=st.integers(2, 16)
)


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(budgets, min_size=1, max_size=4), seed=st.integers(0, 99))
def test_every_row_gets_the_tree_of_its_own_budget_whatever_its_neighbours_ask(rows, seed):
    largest = Budget(
        steps=max(b.steps for b in rows),
        topk=max(b.topk for b in rows),
        nodes=max(b.nodes for b in rows),
    )
    tree = grown(largest, rows, seed)
    for row, budget in enumerate(rows):
        assert paths_of(tree, row) == naive_paths(budget, seed)


def test_a_certain_draft_never_pushes_out_its_own_parent():
    certain = torch.full((1, 1, VOCAB), float("-inf"))
    certain[..., 3] = 0.0
    columns = torch.tensor([[4], [2], [4]])
    scores, numbers, levels = torch.zeros(1, 1), torch.full((1, 1), -1), []
    ids = torch.arange(VOCAB)
    for depth in range(1, 5):
        if depth > 1:
            first = sum(level.tokens.shape[1] for level in levels[:-1])
            tips = advance_frontier(levels[-1], columns, topk=2, first_number=first)
            scores, numbers = tips.scores, tips.numbers
        logprobs = certain.expand(1, scores.shape[1], VOCAB)
        levels.append(
            expand(scores, numbers, logprobs, columns, topk=2, depth=depth, target_ids=ids)
        )
    tree = select(torch.tensor([9]), levels, columns, Budget(steps=4, topk=2, nodes=4))
    assert tree.tokens.tolist() == [[9, 3, 3, 3]]
    assert tree.parents.tolist() == [[-1, 0, 1, 2]]


@pytest.mark.parametrize("scale", [1.0, 1e3, 1e5, 1e7])  # a temperature of 1e-7 makes such scores
def test_a_node_never_stands_without_its_parent_however_large_the_scores(scale):
    generator = torch.Generator().manual_seed(3)
    budget = Budget(steps=3, topk=2, nodes=6)
    columns = torch.tensor([[3] * 40, [2] * 40, [6] * 40])
    scores, numbers, levels = torch.zeros(40, 1), torch.full((40, 1), -1), []
    for depth in range(1, 4):
        if depth > 1:
            first = sum(level.tokens.shape[1] for level in levels[:-1])
            tips = advance_frontier(levels[-1], columns, topk=2, first_number=first)
            scores, numbers = tips.scores, tips.numbers
        law = torch.randn(40, scores.shape[1], VOCAB, generator=generator) * scale
        levels.append(
            expand(
                scores,
                numbers,
                law.log_softmax(-1),
                columns,
                topk=2,
                depth=depth,
                target_ids=torch.arange(VOCAB),
            )
        )
    tree = select(torch.zeros(40, dtype=torch.int64), levels, columns, budget)
    assert (tree.ancestors & 1).all()
    deeper = tree.depths[:, 1:] == tree.depths.gather(1, tree.parents[:, 1:]) + 1
    assert deeper.all()
    number = torch.cat([level.parents for level in levels], 1)  # the tree's own candidates
    assert number.shape[1] == 2 + 4 + 4
    scored = torch.cat([level.scores for level in levels], 1)
    parent = scored.gather(1, number.clamp_min(0))
    assert (scored < torch.where(number < 0, torch.inf, parent)).all()


@pytest.mark.parametrize(("steps", "topk"), [(1, 4), (2, 1), (5, 1), (3, 4), (9, 8)])
def test_scratch_nodes_of_all_steps_are_distinct_and_fill_the_region(steps, topk):
    slots = DraftSlots(tree=Budget(steps=steps, topk=topk, nodes=2))
    nodes = [
        slots.first_node(step) + branch
        for step, branch in itertools.product(range(1, steps), range(topk))
    ]
    assert nodes == list(range(slots.num_nodes))
    bits = [bit for step in range(1, steps) for bit in slots.own_bits(step, torch.device("cpu"))]
    assert len({int(bit) for bit in bits}) == len(bits) == slots.num_nodes
