"""Rows share the query tokens of a step, by their own budgets or by the scores of their drafts, and
no token changes.
"""

from dataclasses import replace

import pytest
from support.engines import Shape, engine_of, make_submission, run_all
from support.matrix import (
    CHAINS_ONLY,
    DRAFTERS,
    LOOKUPS,
    MIXED,
    PROMPTS,
    SAMPLINGS,
    mismatches,
    run_case,
    some_cases,
    with_own_budgets,
    wrong_answers,
)
from support.rungs import FixedRung, different_bits, plain_outputs, shared_outputs

from outrider.ops.tree import place_nodes
from outrider.ops.tree.verify import verify
from outrider.runtime import program
from outrider.runtime.runner import Runner
from outrider.spec import choose_tree
from outrider.wire.draft_budget import PLAIN_RUNG, Budget, Rung, whole_rung
from outrider.wire.row_sampling import Filters, Penalties, RowSampling

CASES = [
    with_own_budgets(case, seed)
    for seed, case in enumerate(some_cases(48, seed=5, drafters=(*DRAFTERS[1:], *CHAINS_ONLY)))
]
SHARED = [
    with_own_budgets(case, seed)
    for seed, case in enumerate(some_cases(32, seed=8, drafters=DRAFTERS[1:]))
]
# With hits, so that finished texts hold the answers.
LOOKED_UP = [
    replace(with_own_budgets(case, seed), drafter=drafter, sampling=sampling, is_prefix_hit=True)
    for drafter in LOOKUPS
    for seed, (case, sampling) in enumerate(
        zip(some_cases(5, seed=9, drafters=("twin",)), [*SAMPLINGS, MIXED], strict=True)
    )
]


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_rows_with_budgets_of_their_own_give_the_reference_tokens(targets, case):
    assert not mismatches(targets[case.target], case)


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("case", [*SHARED, *LOOKED_UP], ids=str)
def test_rows_that_share_any_number_of_drafts_give_the_reference_answers(targets, case):
    """Tokens and log-probabilities; and those of plain decoding to the last bit."""
    models = targets[case.target]
    outputs = shared_outputs(models, case, seed=len(str(case)))
    assert not wrong_answers(models, case, outputs)
    assert not different_bits(outputs, plain_outputs(models.target, case.sampling))
    if case in LOOKED_UP:
        assert sum(each.last.progress.drafted for each in outputs.values())
    if case.drafter == "suffix":
        assert sum(each.last.progress.num_accepted for each in outputs.values())


def test_a_row_that_drafts_less_leaves_its_query_tokens_out(targets, monkeypatch):
    """The largest tree of a step does not decide how much runs."""
    seen, launch = [], Runner._launch

    def watch(self, plan):
        seen.append(plan.shape)
        return launch(self, plan)

    monkeypatch.setattr(Runner, "_launch", watch)
    case = next(each for each in CASES if len({b.nodes for b in each.budgets}) > 2)
    run_case(targets[case.target], case)
    ragged = [shape for shape in seen if shape.ragged]
    assert ragged
    assert all(shape.num_decode_query < shape.num_nodes for shape in ragged)


def read_choices_one_query_token_late(monkeypatch):
    original = place_nodes.values_of_nodes
    monkeypatch.setattr(
        program, "values_of_nodes", lambda values, queries: original(values.roll(-1, 0), queries)
    )


def see_what_the_node_before_sees(monkeypatch):
    """All places stay inside of the pools: compiled loops read whatever a plan says."""
    original = place_nodes.place_nodes_reference

    def late(tree, queries, *, num_query):
        return original(tree, queries, num_query=num_query).roll(1, 1)

    monkeypatch.setattr(place_nodes, "place_nodes_reference", late)


@pytest.mark.parametrize(
    "mutate", [read_choices_one_query_token_late, see_what_the_node_before_sees]
)
def test_a_wrong_place_of_a_node_is_a_wrong_token(targets, monkeypatch, mutate):
    mutate(monkeypatch)
    cases = [case for case in SHARED if case.target == "llama" and case.shape.executor == "eager"]
    cases = cases[:2]
    models = targets["llama"]
    assert any(wrong_answers(models, case, shared_outputs(models, case, seed=1)) for case in cases)


EASY = RowSampling(seed=0, temperature=0.0)
HARD = RowSampling(
    seed=5, temperature=1.3, filters=Filters(top_k=3), penalties=Penalties(presence=2.0)
)
STEPS = 6


def verified_nodes(models, rung, monkeypatch):
    """Answers of four easy and four hard rows, and how many query tokens verified them."""
    seen, launch = [], Runner._launch

    def watch(self, plan):
        seen.append(plan.shape.num_decode_query)
        return launch(self, plan)

    monkeypatch.setattr(Runner, "_launch", watch)
    shape = Shape(max_rows=8, step_tokens=100, kv_tokens=4096, max_context=256)
    budget = Budget(steps=STEPS, topk=1, nodes=STEPS + 1)
    engine = engine_of(models.target, shape, models.draft("twin", budget))
    engine._scheduler._policy = FixedRung(rung)
    submissions = [
        make_submission(
            f"r{i}", [*PROMPTS[0], i], replace(EASY if i % 2 else HARD, seed=i), max_tokens=tokens
        )
        for i, tokens in enumerate([50, 200] * 4)
    ]
    outputs = run_all(engine, submissions)
    monkeypatch.setattr(Runner, "_launch", launch)
    return {name: one.tokens for name, one in outputs.items()}, sum(seen)


@pytest.mark.slow
def test_a_token_costs_fewer_verified_nodes_if_easy_and_hard_rows_share_drafts(models, monkeypatch):
    """The twin knows greedy rows exactly, and not what penalties and filters do to the others."""
    alike = whole_rung(Budget(steps=2, topk=1, nodes=3))
    shared = Rung(tree=Budget(steps=STEPS, topk=1, nodes=STEPS + 1), drafts=2)
    right, num_alike = verified_nodes(models, alike, monkeypatch)
    tokens, num_shared = verified_nodes(models, shared, monkeypatch)
    assert tokens == right
    assert num_shared < 0.9 * num_alike


def first_shares(models, monkeypatch, *, is_adaptive):
    """The nodes that easy and hard rows get in the first step that shares drafts, summed up."""
    shares, share = [], choose_tree.share_nodes

    def watch(*args, **kwargs):
        shares.append(share(*args, **kwargs))
        return shares[-1]

    monkeypatch.setattr(choose_tree, "share_nodes", watch)
    budget = Budget(steps=STEPS, topk=1, nodes=STEPS + 1)
    draft = replace(models.draft("twin", budget), is_adaptive=is_adaptive)
    shape = Shape(max_rows=8, step_tokens=100, kv_tokens=4096, max_context=256)
    engine = engine_of(models.target, shape, draft)
    engine._scheduler._policy = FixedRung(whole_rung(budget))
    for i in range(8):
        sampling = replace(EASY if i % 2 else HARD, seed=i)
        engine.add(make_submission(f"r{i}", [*PROMPTS[0], i], sampling, max_tokens=200))
    for _ in range(12):
        engine.step()
    assert not shares
    engine._scheduler._policy = FixedRung(Rung(tree=budget, drafts=2))
    while not shares:
        engine.step()
    monkeypatch.setattr(choose_tree, "share_nodes", share)
    nodes = shares[0][2].tolist()
    return sum(nodes[1::2]), sum(nodes[::2])


def test_the_first_step_that_shares_drafts_knows_what_steps_before_it_accepted(models, monkeypatch):
    easy, hard = first_shares(models, monkeypatch, is_adaptive=True)
    unknown, _ = first_shares(models, monkeypatch, is_adaptive=False)  # never shares: not counted
    assert easy > hard
    assert easy > unknown


def test_a_step_that_fails_before_its_drafts_are_counted_does_not_end_drafting(models):
    calls = []

    def fail_once(tree, choice, most_emitted):
        calls.append(tree)
        if len(calls) == 3:
            raise RuntimeError("the device is gone for a moment")
        return verify(tree, choice, most_emitted)

    budget = Budget(steps=3, topk=1, nodes=4)
    engine = engine_of(models.target, Shape(), models.draft("twin", budget), verifier=fail_once)
    for rung in (Rung(tree=budget, drafts=1), PLAIN_RUNG):
        engine._scheduler._policy = FixedRung(rung)
        run_all(engine, [make_submission(str(rung.nodes), [3, 4, 5], EASY, max_tokens=9)])
    assert engine.num_failed_steps == 1
    assert not engine._runner.has_drafter_failed
