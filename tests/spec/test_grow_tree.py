"""The tree builder against a naive beam over a toy table of log-probabilities."""

import itertools
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.ops.tree.candidates import Candidates, Frontier
from outrider.ops.tree.draft_tree import DraftTree
from outrider.ops.tree.plan_rows import DecodeRows
from outrider.ops.tree.select_nodes import select_nodes
from outrider.sampling.draft_topk import likely_tokens
from outrider.spec.draft_slots import DraftSlots
from outrider.spec.grow_tree import grow, room_for
from outrider.wire.draft_budget import Budget

VOCAB = 7


def toy_logprobs(path: tuple[int, ...], seed: int) -> torch.Tensor:
    """Log-probabilities of the next token after a path, made from the path itself."""
    generator = torch.Generator().manual_seed(hash((seed, *path)) % 2**31)
    return (torch.randn(VOCAB, generator=generator) * 2).log_softmax(0)


LogitsBelow = Callable[[Frontier], torch.Tensor]  # [rows * branches, vocab] logits below each tip


def growth(
    tree: Budget, budgets: list[Budget], logits_below: LogitsBelow
) -> tuple[Candidates, DraftTree]:
    """Candidates and tree of every row, grown the way a drafter grows them; tokens as they are."""
    root = torch.arange(len(budgets))
    decode = DecodeRows(
        rows=root,
        lengths=torch.zeros_like(root),
        budgets=torch.tensor([[b.steps, b.topk, b.nodes] for b in budgets]).T,
    )
    slots, tips, candidates = DraftSlots(tree=tree), node_0(root), room_for(tree, root)
    for depth in range(1, tree.steps + 1):
        likely = likely_tokens(logits_below(tips), torch.arange(VOCAB), tree.topk)
        tips = grow(tips, likely, decode, candidates=candidates, slots=slots, depth=depth)
    return candidates, select_nodes(root, candidates, decode.budgets, tree).tree


def node_0(root: torch.Tensor) -> Frontier:
    zeros = torch.zeros_like(root)[:, None]
    return Frontier(
        scores=zeros.float(),
        numbers=zeros - 1,
        parent_tips=zeros,
        positions=zeros + 1,
        nodes=DraftTree(tokens=root[:, None], parents=zeros, depths=zeros, ancestors=zeros),
    )


class ToyLaw:
    """Follows the frontier, so that the logits of each tip depend on its whole path."""

    def __init__(self, rows: int, seed: int) -> None:
        self._seed = seed
        self._paths: list[list[tuple[int, ...]]] = [[] for _ in range(rows)]

    def __call__(self, tips: Frontier) -> torch.Tensor:
        tokens, places = tips.nodes.tokens.tolist(), tips.parent_tips.tolist()
        self._paths = [
            [(*before[place], token) for place, token in zip(*row, strict=True)] if before else [()]
            for before, *row in zip(self._paths, places, tokens, strict=True)
        ]
        paths = [path for row in self._paths for path in row]
        return torch.stack([toy_logprobs(path, self._seed) for path in paths])


def naive_paths(budget: Budget, seed: int) -> set[tuple[int, ...]]:
    """The paths of a row's tree by a beam in plain Python: all candidates, then the best nodes."""
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
            paths[node] = (*paths[parents[node]], tokens[node])
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
    _, tree = growth(largest, rows, ToyLaw(len(rows), seed))
    for row, budget in enumerate(rows):
        assert paths_of(tree, row) == naive_paths(budget, seed)


def test_a_certain_draft_never_pushes_out_its_own_parent():
    certain = torch.full((VOCAB,), float("-inf"))
    certain[3] = 0.0
    budget = Budget(steps=4, topk=2, nodes=4)
    _, tree = growth(budget, [budget], lambda tips: certain.expand(tips.scores.numel(), VOCAB))
    assert tree.tokens.tolist() == [[0, 3, 3, 3]]
    assert tree.parents.tolist() == [[-1, 0, 1, 2]]


@pytest.mark.parametrize("scale", [1.0, 1e3, 1e5, 1e7])  # a temperature of 1e-7 makes such scores
def test_a_node_never_stands_without_its_parent_however_large_the_scores(scale):
    generator = torch.Generator().manual_seed(3)
    budget = Budget(steps=3, topk=2, nodes=6)
    candidates, tree = growth(
        budget,
        [budget] * 40,
        lambda tips: torch.randn(tips.scores.numel(), VOCAB, generator=generator) * scale,
    )
    assert (tree.ancestors & 1).all()
    deeper = tree.depths[:, 1:] == tree.depths.gather(1, tree.parents[:, 1:]) + 1
    assert deeper.all()
    number = candidates.parents
    assert number.shape[1] == 2 + 4 + 4
    parent = candidates.scores.gather(1, number.clamp_min(0))
    assert (candidates.scores < torch.where(number < 0, torch.inf, parent)).all()


def test_of_equally_likely_drafts_the_first_stay():
    budget = Budget(steps=2, topk=3, nodes=6)
    _, tree = growth(budget, [budget], lambda tips: torch.zeros(tips.scores.numel(), VOCAB))
    # Of nine equal grandchildren the first two are left, both below the first child.
    assert tree.parents.tolist() == [[-1, 0, 0, 0, 1, 1]]


@pytest.mark.parametrize(("steps", "topk"), [(1, 4), (2, 1), (5, 1), (3, 4), (9, 8)])
def test_scratch_nodes_of_all_steps_are_distinct_and_fill_the_region(steps, topk):
    slots = DraftSlots(tree=Budget(steps=steps, topk=topk, nodes=2))
    nodes = [
        slots.first_node(step) + branch
        for step, branch in itertools.product(range(1, steps), range(topk))
    ]
    assert nodes == list(range(slots.num_nodes))
