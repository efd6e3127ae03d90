"""A forced acceptance changes how many drafts are kept, and nothing else about a verdict."""

import random

import pytest
import torch
from support.engines import make_submission
from support.trees import random_tree, tree_of

from benchmarks.forced_acceptance import ChanceVerifier, ForcedVerifier, accept_chance
from benchmarks.steps.bench_engines import build, head_drafting, load_bench_target
from benchmarks.steps.body import find_body
from benchmarks.steps.step_args import Place, Tree
from outrider.errors import ConfigError
from outrider.ops.tree.chain import chain, single_node
from outrider.wire.row_sampling import RowSampling

CPU = torch.device("cpu")


def depth_of(parents, node):
    return 0 if parents[node] < 0 else 1 + depth_of(parents, parents[node])


@pytest.mark.parametrize("nodes", [1, 2, 5, 16, 64])
@pytest.mark.parametrize("mean", [1.0, 2.0, 3.0, 9.0])
def test_a_whole_number_of_tokens_is_emitted_by_every_row_as_deep_as_its_tree(nodes, mean):
    rng = random.Random(nodes)
    tree = random_tree(rng, rows=7, nodes=nodes, vocab=200)
    choice = torch.tensor([[rng.randrange(200) for _ in range(nodes)] for _ in range(7)])
    verify_result = ForcedVerifier(mean, device=CPU)(tree, choice, nodes)
    assert verify_result.drafted.tolist() == [nodes - 1] * 7
    for row in range(7):
        tokens, parents = tree.tokens[row].tolist(), tree.parents[row].tolist()
        deepest = max(depth_of(parents, node) for node in range(nodes))
        num_accepted = verify_result.num_accepted[row].item()
        assert num_accepted == min(int(mean) - 1, deepest)
        path = verify_result.path[row].tolist()
        assert path[0] == 0
        assert [parents[node] for node in path[1 : num_accepted + 1]] == path[
            :num_accepted
        ]  # it exists
        assert path[num_accepted:] == [path[num_accepted]] * (nodes - num_accepted)
        emitted = verify_result.emitted[row].tolist()
        assert emitted[:num_accepted] == [tokens[node] for node in path[1 : num_accepted + 1]]
        assert (
            emitted[num_accepted] == choice[row, path[num_accepted]].item()
        )  # the bonus is the target's


def test_absent_nodes_are_never_kept_nor_counted():
    tree = tree_of([[7, 3, -1, -1], [7, -1, -1, -1]], [[-1, 0, 0, 0], [-1, 0, 0, 0]])
    verify_result = ForcedVerifier(3.0, device=CPU)(tree, torch.zeros(2, 4, dtype=torch.int64), 3)
    assert verify_result.num_accepted.tolist() == [1, 0]
    assert verify_result.drafted.tolist() == [1, 0]
    assert verify_result.emitted[0, :2].tolist() == [3, 0]
    assert verify_result.path.shape == verify_result.emitted.shape == (2, 3)


def test_a_bonus_that_happens_to_be_a_draft_keeps_no_more_than_was_asked():
    tree = chain(torch.tensor([[1, 2, 3, 4]]))
    verify_result = ForcedVerifier(2.0, device=CPU)(tree, torch.tensor([[2, 3, 4, 5]]), 4)
    assert verify_result.num_accepted.tolist() == [1]
    assert verify_result.emitted[0, :2].tolist() == [2, 3]


def test_without_drafts_a_round_emits_the_targets_token():
    verifier = ForcedVerifier(3.0, device=CPU)
    verify_result = verifier(single_node(torch.tensor([4, 9])), torch.tensor([[7], [8]]), 1)
    assert verify_result.num_accepted.tolist() == [0, 0]
    assert verify_result.emitted.tolist() == [[7], [8]]


@pytest.mark.parametrize("mean", [1.25, 2.5, 2.9])
def test_a_fraction_alternates_between_its_neighbours_and_is_kept_by_each_row_and_each_step(mean):
    verifier, steps, rows = ForcedVerifier(mean, device=CPU), 40, 32
    tree = chain(torch.arange(6).expand(rows, 6))
    emitted = torch.stack([verifier(tree, tree.tokens, 6).num_accepted + 1 for _ in range(steps)])
    assert set(emitted.flatten().tolist()) == {int(mean), int(mean) + 1}
    assert (emitted.sum(0) - steps * mean).abs().max() <= 1  # by row
    assert (emitted.sum(1) / rows - mean).abs().max() < 0.1  # by step: rows do not tick together


@pytest.mark.parametrize(("mean", "steps"), [(1.2, 4), (2.9, 4), (4.5, 5)])
def test_by_chance_a_whole_chain_emits_the_mean_and_shorter_ones_less(mean, steps):
    chance = accept_chance(mean, steps=steps)
    for nodes in range(1, steps + 2):
        emitted = rounds_by_chance(ChanceVerifier(chance, device=CPU), nodes=nodes, rounds=400)
        expected = sum(chance**depth for depth in range(nodes))
        assert emitted.double().mean().item() == pytest.approx(expected, abs=0.03)
    assert expected == pytest.approx(mean)


def test_draws_by_chance_do_not_depend_on_the_draws_before_nor_on_other_rows():
    emitted = rounds_by_chance(ChanceVerifier(0.5, device=CPU), nodes=2, rounds=4000)
    is_accepted = emitted == 2  # [rounds, rows]
    for later, earlier in (
        (is_accepted[1:], is_accepted[:-1]),
        (is_accepted[2:], is_accepted[:-2]),
        (is_accepted[:, 1:], is_accepted[:, :-1]),
    ):
        assert later[earlier].double().mean().item() == pytest.approx(0.5, abs=0.01)


def test_a_restart_begins_the_same_draws_again_with_another_chance():
    verifier = ChanceVerifier(0.5, device=CPU)
    first = rounds_by_chance(verifier, nodes=5, rounds=20)
    verifier.restart(0.5)
    assert torch.equal(rounds_by_chance(verifier, nodes=5, rounds=20), first)
    verifier.restart(0.9)
    easier = rounds_by_chance(verifier, nodes=5, rounds=20)
    assert (easier >= first).all()  # the same draws, and every draft has a better chance
    assert easier.sum() > 1.5 * first.sum()


def rounds_by_chance(verifier, *, nodes, rounds):  # [rounds, 16] tokens that were emitted
    tree = chain(torch.arange(nodes).expand(16, nodes))
    found = [verifier(tree, tree.tokens, nodes).num_accepted + 1 for _ in range(rounds)]
    return torch.stack(found)


def test_less_than_one_token_cannot_be_emitted():
    for mean in (0.5, float("nan")):
        with pytest.raises(ConfigError, match="1 or more"):
            ForcedVerifier(mean, device=CPU)


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("executor", ["eager", "tape"])
@pytest.mark.parametrize(
    ("tree", "mean"),
    [((5, 1, 6), 3.0), ((5, 4, 16), 3.0), ((5, 1, 6), 2.5), ((3, 2, 6), 1.0)],
    ids=str,
)
def test_an_engine_emits_the_right_number_of_tokens_at_the_forced_mean(executor, tree, mean):
    steps, topk, nodes = tree
    place = Place(
        device="cpu", dtype="float32", executor=executor, is_deterministic=False, step_tokens=64
    )
    body = find_body("tiny")
    target = load_bench_target(body, place)
    tree = Tree(steps=steps, topk=topk, nodes=nodes, mean_emitted=mean)
    drafting = head_drafting(target, tree, draft_vocab=body.draft_vocab)
    engine = build(target, drafting, rows=3, context=128).engine
    greedy = RowSampling(seed=0, temperature=0.0)
    for row in range(3):
        engine.add(make_submission(str(row), [row + 1, 5, 6], greedy, max_tokens=61))
    tokens, last = {}, {}
    while engine.has_work:
        for update in engine.step():
            tokens[update.request_id] = tokens.get(update.request_id, 0) + len(update.tokens)
            last[update.request_id] = update
    assert tokens == {"0": 61, "1": 61, "2": 61}
    for update in last.values():
        progress = update.progress
        # The prompt's own step gives the first token, and the last round may be cut.
        assert abs(progress.rounds - 60 / mean) <= 1
        assert progress.drafted == progress.rounds * (nodes - 1)
