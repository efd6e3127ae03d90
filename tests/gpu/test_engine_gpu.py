"""On a GPU the engine gives the tokens of the reference decoder, recorded or not."""

import random
from dataclasses import replace

import pytest
import torch
from support.engines import Shape, engine_of, make_submission, run_all
from support.matrix import (
    CHAINS_ONLY,
    DRAFTERS,
    MIXED,
    SAMPLINGS,
    TREES,
    Case,
    mismatches,
    run_case,
    sampling_of,
    with_own_budgets,
    wrong_answers,
)
from support.model_set import make_models
from support.rungs import shared_outputs

from outrider.config.engine_config import EngineConfig, ExecutionConfig, LimitsConfig
from outrider.engine.engine import Engine
from outrider.ops.graph_break import is_capturing
from outrider.runtime.model_home import ModelHome

DRAFTS = [
    ("none", "chain"),
    ("twin", "chain"),
    ("relative", "tree"),
    ("eagle3", "wide"),
    ("mtp", "tree"),
    ("modules", "chain"),
]
EXECUTORS = ["eager", "graph", "breakable"]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    torch.backends.cuda.matmul.allow_tf32 = False
    return make_models(tmp_path_factory.mktemp("models"), "cuda")


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize(("drafter", "tree"), DRAFTS)
def test_tokens_are_those_of_the_reference_decoder(
    models, drafter, tree, sampling, depth, executor
):
    shape = Shape(device="cuda", pad=4, depth=depth, step_tokens=90, executor=executor)
    assert not mismatches(models, Case(shape, False, sampling, drafter, tree))


def _some_cases(num, seed):
    rng = random.Random(seed)
    for _ in range(num):
        drafter = rng.choice([*DRAFTERS, *CHAINS_ONLY])
        tree = rng.choice(["one-step", "chain"] if drafter in CHAINS_ONLY else list(TREES))
        nodes = 1 if drafter == "none" else TREES[tree].nodes
        shape = Shape(
            device="cuda",
            page_size=rng.choice([1, 4, 16, 64]),
            pad=rng.choice([1, 4]),
            depth=rng.choice([0, 1]),
            executor=rng.choice(EXECUTORS),
            step_tokens=4 * nodes + rng.choice([1, 7, 60]),
        )
        yield Case(shape, rng.random() < 0.5, rng.choice([*SAMPLINGS, MIXED]), drafter, tree)


@pytest.mark.parametrize("case", list(_some_cases(60, seed=4)), ids=str)
def test_tokens_hold_anywhere_in_the_matrix(models, case):
    assert not mismatches(models, case)


RAGGED = [with_own_budgets(case, seed) for seed, case in enumerate(_some_cases(40, seed=6))]


@pytest.mark.parametrize("case", [case for case in RAGGED if case.drafter != "none"], ids=str)
def test_rows_with_budgets_of_their_own_give_the_reference_tokens(models, case):
    assert not mismatches(models, case)


RANKED = [case for case in RAGGED if case.drafter not in ("none", *CHAINS_ONLY)]


@pytest.mark.parametrize("case", RANKED, ids=str)
def test_rows_that_share_any_number_of_drafts_give_the_reference_tokens(models, case):
    assert not wrong_answers(models, case, shared_outputs(models, case, seed=3))


@pytest.mark.parametrize(("drafter", "tree"), DRAFTS)
def test_executors_agree_to_the_last_bit_at_equal_shape(models, drafter, tree):
    outputs = {}
    for executor in EXECUTORS:
        shape = Shape(device="cuda", pad=4, depth=1, step_tokens=90, executor=executor)
        answers = run_case(models, Case(shape, False, "sampled", drafter, tree))
        outputs[executor] = {name: (one.tokens, one.logprobs) for name, one in answers.items()}
    assert outputs["graph"] == outputs["eager"]
    assert outputs["breakable"] == outputs["eager"]


def test_shapes_that_are_forgotten_are_recorded_again(models, monkeypatch):
    from outrider.step import graph_executor as graph

    monkeypatch.setattr(graph, "MAX_GRAPHS", 1)
    shape = Shape(device="cuda", pad=1, depth=1, step_tokens=90, executor="graph")
    assert not mismatches(models, Case(shape, False, "mixed", "relative", "tree"))
    assert not mismatches(models, Case(replace(shape, pad=4), True, "mixed", "eagle3", "chain"))


def test_a_step_above_the_largest_recorded_size_runs_the_same_program(models, monkeypatch):
    from outrider.step import graph_executor as graph

    monkeypatch.setattr(graph, "MAX_CAPTURED_TOKENS", 20)
    shape = Shape(device="cuda", depth=1, step_tokens=90, executor="breakable")
    assert not mismatches(models, Case(shape, False, "mixed", "relative", "tree"))


def test_a_shape_that_cannot_be_recorded_runs_eagerly_and_drafts_on(models, monkeypatch):
    shape = Shape(device="cuda", depth=1, step_tokens=90, executor="graph")
    engine = engine_of(models.target, shape, models.draft("relative", TREES["chain"]))
    program = engine._runner._program
    original = program._verifier

    def uncapturable(tree, choice, most_emitted):
        if is_capturing():
            raise RuntimeError("no memory for a recording")
        return original(tree, choice, most_emitted)

    monkeypatch.setattr(program, "_verifier", uncapturable)
    output = run_all(
        engine, [make_submission("r", [3, 4, 5], sampling_of("greedy", 0), max_tokens=12)]
    )["r"]
    plain = engine_of(models.target, Shape(device="cuda"))
    right = run_all(
        plain, [make_submission("r", [3, 4, 5], sampling_of("greedy", 0), max_tokens=12)]
    )["r"]
    assert output.tokens == right.tokens
    assert output.last.progress.drafted > 0
    assert engine._runner._executor.num_uncapturable > 0
    assert engine._runner._executor.num_graphs == 0


def test_real_sizes_are_rehearsed_and_recorded_at_start(models):
    progress = []
    config = EngineConfig(
        device="cuda", dtype="float32", execution=ExecutionConfig(record="at start")
    )
    config = replace(config, limits=LimitsConfig(rows=6, context=128))
    home = ModelHome(models.folder, config)
    runner, facts = home.build(lambda done, all: progress.append((done, all)))
    engine = Engine(runner, facts)
    num_shapes = progress[-1][1]
    assert progress[-1] == (num_shapes, num_shapes)
    assert runner._executor.num_graphs == num_shapes > 6
    submissions = [
        make_submission(f"r{i}", [3 + i, 4], sampling_of("greedy", i), max_tokens=5)
        for i in range(6)
    ]
    assert len(run_all(engine, submissions)) == 6
    assert facts.num_pages > 6 * 128 // 16
