"""One tree from a model's candidates and paths of texts, against a union of sets of paths."""

import math
import random

import pytest
import torch

from outrider.ops.tree import graft_paths
from outrider.ops.tree.candidates import Candidates
from outrider.ops.tree.graft_paths import graft, graft_reference
from outrider.ops.tree.graft_paths_compiled import graft_compiled
from outrider.ops.tree.limit_children import limit_children_, limit_children_reference_
from outrider.ops.tree.limit_children_compiled import limit_children_compiled_
from outrider.ops.tree.select_nodes import best_candidates, select_nodes
from outrider.ops.tree.text_paths import FoundPaths
from outrider.wire.draft_budget import Budget

NONE = float("-inf")
MODEL, TEXT, BOTH = range(3)
GREEDY, SAMPLED = torch.tensor([0]), torch.tensor([1])


def budgets_of(steps: int, topk: int, nodes: int) -> torch.Tensor:
    return torch.tensor([[steps], [topk], [nodes]])


def found_of(*paths: list[int], weights=None, longest=4) -> FoundPaths:
    return FoundPaths(
        paths=torch.tensor([paths]),
        weights=torch.tensor([weights or [1.0 / len(paths)] * len(paths)]),
        longest=torch.tensor([longest]),
    )


def candidates_of(*nodes: tuple[int, int, float]) -> Candidates:
    """Of one row: (token, number of the parent, score), level by level."""
    tokens, parents, scores = zip(*nodes, strict=True)
    return Candidates(
        scores=torch.tensor([scores]),
        tokens=torch.tensor([tokens]),
        parents=torch.tensor([parents]),
    )


def paths_of(candidates: Candidates) -> list[tuple[int, ...]]:
    """The tokens from node 0 to each candidate that is not ruled out."""
    tokens, parents = candidates.tokens[0].tolist(), candidates.parents[0].tolist()
    scores, paths = candidates.scores[0].tolist(), {-1: ()}
    for number, parent in enumerate(parents):
        if scores[number] > NONE:
            assert parent < number
            assert scores[parent] > NONE or parent < 0, "a parent was ruled out"
            paths[number] = (*paths[parent], tokens[number])
    return list(paths.values())[1:]


# Node 0 has the children 5 and 6; 5 has the child 7. The third candidate is ruled out.
MODEL_TREE = candidates_of((5, -1, -0.1), (6, -1, -2.0), (9, -1, NONE), (7, 0, -0.2))


def test_a_path_follows_the_model_and_goes_on_below_it():
    merged = graft(MODEL_TREE, found_of([5, 7, 8, 4]), budgets_of(4, 2, 8), GREEDY, steps=2)
    assert paths_of(merged.candidates) == [(5,), (6,), (5, 7), (5, 7, 8), (5, 7, 8, 4)]
    is_node = merged.candidates.scores[0] > NONE
    assert merged.sources[0][is_node].tolist() == [BOTH, MODEL, BOTH, TEXT, TEXT]


def test_a_node_that_the_model_has_ruled_out_can_come_from_a_text():
    merged = graft(MODEL_TREE, found_of([9, 7, -1, 3]), budgets_of(4, 2, 8), GREEDY, steps=2)
    assert paths_of(merged.candidates) == [(5,), (6,), (5, 7), (9,), (9, 7)]


def test_no_path_is_longer_than_the_budget_of_its_row():
    merged = graft(MODEL_TREE, found_of([5, 7, 8, 4]), budgets_of(3, 2, 8), GREEDY, steps=2)
    assert (5, 7, 8) in paths_of(merged.candidates)
    assert (5, 7, 8, 4) not in paths_of(merged.candidates)


def test_a_row_without_a_match_has_the_candidates_of_its_model():
    nothing = found_of([5, 1], [2, 3], weights=[0.0, 0.0], longest=0)
    merged = graft(MODEL_TREE, nothing, budgets_of(2, 2, 8), GREEDY, steps=2)
    assert paths_of(merged.candidates) == [(5,), (6,), (5, 7)]
    assert not merged.sources[0, : MODEL_TREE.tokens.shape[1]].any()


def test_a_longer_match_and_a_more_frequent_path_have_better_chances():
    def score(path, found):
        merged = graft(MODEL_TREE, found, budgets_of(4, 2, 8), GREEDY, steps=2).candidates
        scores = merged.scores[0][merged.scores[0] > NONE].tolist()
        return scores[paths_of(merged).index(path)]

    short = found_of([1, 2], [3, 4], weights=[0.8, 0.2], longest=1)
    long = found_of([1, 2], [3, 4], weights=[0.8, 0.2], longest=12)
    assert score((1,), long) > score((1,), short)
    assert score((1,), long) > score((3,), long) > score((3, 4), long)


@pytest.mark.parametrize(
    ("longest", "first", "second"), [(1, 1 / 9, 2 / 3.5), (12, 0.6, 13 / 14.5)]
)
def test_a_path_is_trusted_by_its_match_and_more_once_a_token_was_accepted(longest, first, second):
    found = found_of([1, 2], longest=longest)
    merged = graft(MODEL_TREE, found, budgets_of(4, 2, 8), GREEDY, steps=2).candidates
    scores = dict(zip(paths_of(merged), merged.scores[0][merged.scores[0] > NONE], strict=True))
    assert math.exp(scores[1,]) == pytest.approx(first)
    assert math.exp(scores[1, 2] - scores[1,]) == pytest.approx(second)


STEPS = 3


def random_tree(rng: random.Random, *, topk: int) -> Candidates:
    """Level by level as of a draft model, or in the order of scores as of a block."""
    nodes, tips = [], [(-1, 0.0)]
    for _ in range(STEPS):
        grown = []
        for parent, score in tips:
            for token in rng.sample(range(1, 5), topk):
                own = score - rng.random()
                nodes.append((token, parent, own if rng.random() < 0.8 else NONE))
                if nodes[-1][2] > NONE:
                    grown.append((len(nodes) - 1, own))
        tips = grown[:topk]
    return candidates_of(*(best_first(nodes) if rng.random() < 0.5 else nodes))


def best_first(nodes: list[tuple[int, int, float]]) -> list[tuple[int, int, float]]:
    """A child never scores better than its parent, so that a parent still comes first."""
    order = sorted(range(len(nodes)), key=lambda number: (-nodes[number][2], number))
    numbers = {-1: -1} | {number: place for place, number in enumerate(order)}
    return [(nodes[n][0], numbers[nodes[n][1]], nodes[n][2]) for n in order]


def compiled(model, found, budgets, is_sampled, *, steps):
    """Without depths: it finds a node by its parent and its token."""
    del steps
    return graft_compiled(model, found, budgets, is_sampled)


def assert_is_the_union(seed: int, graft) -> None:
    rng = random.Random(seed)
    model = random_tree(rng, topk=2)
    paths = [[rng.randrange(1, 4) for _ in range(5)] for _ in range(4)]
    for path in paths:
        if rng.random() < 0.5:
            path[rng.randrange(5)] = -1
    found = found_of(*paths)
    merged = graft(model, found, budgets_of(5, 9, 64), GREEDY, steps=STEPS).candidates
    expected = set(paths_of(model))
    for path in paths:
        known = path[: path.index(-1)] if -1 in path else path
        expected |= {tuple(known[:depth]) for depth in range(1, len(known) + 1)}
    found = paths_of(merged)
    assert set(found) == expected
    assert len(found) == len(expected), "equal siblings"


@pytest.mark.parametrize("form", [graft_reference, compiled])
def test_the_tree_is_the_union_of_both_without_equal_siblings(form):
    for seed in range(40):
        assert_is_the_union(seed, form)


def random_found(rng: random.Random, *, rows: int) -> FoundPaths:
    """Some paths have no weight: fewer occurrences were found."""
    paths, weights = torch.empty(rows, 6, 5, dtype=torch.int64), torch.zeros(rows, 6)
    for row in range(rows):
        for path in range(6):
            paths[row, path] = torch.tensor([rng.choice([1, 1, 2, 3, -1]) for _ in range(5)])
            weights[row, path] = rng.choice([0.0, 0.125, 1.0])
    longest = torch.tensor([rng.randrange(1, 20) for _ in range(rows)])
    return FoundPaths(paths=paths, weights=weights, longest=longest * (weights.amax(1) > 0))


@pytest.mark.parametrize("seed", range(30))
def test_both_forms_give_the_same_candidates(seed):
    rng = random.Random(seed)
    model = random_tree(rng, topk=2)
    two_rows = Candidates(
        scores=model.scores.repeat(2, 1),
        tokens=model.tokens.repeat(2, 1),
        parents=model.parents.repeat(2, 1),
    )
    budgets = torch.tensor([[5, rng.randrange(6)], [2, 2], [8, 8]])
    given = two_rows, random_found(rng, rows=2), budgets, torch.tensor([0, 1])
    ours, right = graft_compiled(*given), graft_reference(*given, steps=STEPS)
    is_node = right.candidates.scores > NONE
    assert torch.equal(ours.candidates.scores > NONE, is_node)
    for name in ("tokens", "parents"):
        found, expected = (getattr(each.candidates, name) for each in (ours, right))
        assert torch.equal(found[is_node], expected[is_node])
    assert torch.equal(ours.sources[is_node], right.sources[is_node])
    torch.testing.assert_close(ours.candidates.scores, right.candidates.scores)
    for limit, merged in ((limit_children_compiled_, ours), (limit_children_reference_, right)):
        limit(merged.candidates, budgets[1], steps=5)
    assert torch.equal(ours.candidates.scores > NONE, right.candidates.scores > NONE)


@pytest.mark.parametrize("form", [graft_reference, compiled])
def test_a_path_without_weight_takes_no_node_from_a_path_that_begins_like_it(form):
    found = found_of([4, 5], [4, 6], weights=[0.0, 1.0])
    merged = form(MODEL_TREE, found, budgets_of(2, 2, 8), GREEDY, steps=2)
    assert (4, 6) in paths_of(merged.candidates)
    assert (4, 5) not in paths_of(merged.candidates)


def duplicate_branches(monkeypatch):
    """Paths do not find the nodes of the model."""
    original = graft_paths._same_nodes
    monkeypatch.setattr(graft_paths, "_same_nodes", lambda *args: original(*args) & False)


def hang_children_below_a_neighbour(monkeypatch):
    original = graft_paths._numbers_of

    def wrong(hits, depths, longest):
        numbers = original(hits, depths, longest)
        return torch.where(numbers < 0, numbers, (numbers + 1) % hits.shape[2])

    monkeypatch.setattr(graft_paths, "_numbers_of", wrong)


@pytest.mark.parametrize("mutate", [duplicate_branches, hang_children_below_a_neighbour])
def test_the_union_notices(monkeypatch, mutate):
    mutate(monkeypatch)
    with pytest.raises(AssertionError):
        test_the_tree_is_the_union_of_both_without_equal_siblings(graft_reference)


def test_a_chain_of_both_is_a_chain():
    for seed in range(20):
        assert_is_a_chain(seed)


def assert_is_a_chain(seed: int) -> None:
    rng = random.Random(seed)
    model = random_tree(rng, topk=1)
    paths = [[rng.randrange(1, 4) for _ in range(5)] for _ in range(4)]
    budgets = budgets_of(5, 1, 6)
    merged = graft(model, found_of(*paths), budgets, GREEDY, steps=STEPS).candidates
    limit_children_(merged, budgets[1], steps=5)
    assert len({len(path) for path in paths_of(merged)}) == len(paths_of(merged))
    tree = select_nodes(torch.tensor([9]), merged, budgets, Budget(steps=5, topk=1, nodes=6)).tree
    num = int((tree.tokens[0] >= 0).sum())
    assert tree.parents[0, :num].tolist() == list(range(-1, num - 1))


def test_only_the_best_children_stay_and_nothing_below_the_others():
    tree = candidates_of((1, -1, -1.0), (2, -1, -0.5), (3, -1, -1.0), (4, 2, -1.1), (5, 0, -1.2))
    limit_children_(tree, torch.tensor([2]), steps=2)
    assert paths_of(tree) == [(1,), (2,), (1, 5)]


def test_where_tokens_are_drawn_a_text_counts_less_against_its_model():
    found, budgets = found_of([5, 7, 8, 4], longest=12), budgets_of(4, 2, 8)
    greedy, sampled = (
        graft(MODEL_TREE, found, budgets, rows, steps=2) for rows in (GREEDY, SAMPLED)
    )
    lost = (greedy.candidates.scores - sampled.candidates.scores)[0]
    is_node = greedy.candidates.scores[0] > NONE
    steps = [0.0, 0.0, 0.0, -math.log(0.3), -2 * math.log(0.3)]
    assert lost[is_node].tolist() == pytest.approx(steps)


def test_the_best_candidates_are_a_tree_of_their_own():
    """Of six, the four best: 5, 6, and both children of 5. One is ruled out, 3 is too many."""
    tree = candidates_of(
        (5, -1, -0.1), (6, -1, -2.0), (9, -1, NONE), (7, 0, -0.2), (3, 1, -3.0), (4, 0, -0.3)
    )
    root, budget = torch.tensor([8]), Budget(steps=2, topk=2, nodes=5)
    best = best_candidates(root, tree, budgets_of(2, 2, 5), budget)
    assert paths_of(best) == [(5,), (6,), (5, 7), (5, 4)]
    assert best.scores[0].tolist() == pytest.approx([-0.1, -2.0, -0.2, -0.3])
    fewer = best_candidates(root, tree, budgets_of(2, 2, 3), budget)
    assert paths_of(fewer) == [(5,), (5, 7)]
    assert fewer.scores.shape == (1, 4)
