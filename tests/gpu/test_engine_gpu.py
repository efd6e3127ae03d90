"""On a GPU the engine gives the tokens of the reference decoder, recorded or not."""

import random
from dataclasses import replace

import pytest
import torch
from support.engines import Shape
from support.matrix import LAWS, MIXED, TREES, Case, mismatches, run_case
from support.model_set import make_models

DRAFTS = [("none", "chain"), ("twin", "chain"), ("relative", "tree"), ("eagle3", "wide")]
EXECUTORS = ["eager", "graph", "breakable"]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    torch.backends.cuda.matmul.allow_tf32 = False
    return make_models(tmp_path_factory.mktemp("models"), "cuda")


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(("drafter", "tree"), DRAFTS)
def test_tokens_are_those_of_the_reference_decoder(models, drafter, tree, law, depth, executor):
    shape = Shape(device="cuda", pad=4, depth=depth, step_tokens=90, executor=executor)
    assert not mismatches(models, Case(shape, False, law, drafter, tree))


def _some_cases(num, seed):
    rng = random.Random(seed)
    for _ in range(num):
        drafter = rng.choice(["none", "twin", "relative", "stranger", "eagle", "eagle3"])
        tree = rng.choice(list(TREES))
        nodes = 1 if drafter == "none" else TREES[tree].nodes
        shape = Shape(
            device="cuda",
            page_size=rng.choice([1, 4, 16, 64]),
            pad=rng.choice([1, 4]),
            depth=rng.choice([0, 1]),
            executor=rng.choice(EXECUTORS),
            step_tokens=4 * nodes + rng.choice([1, 7, 60]),
        )
        yield Case(shape, rng.random() < 0.5, rng.choice([*LAWS, MIXED]), drafter, tree)


@pytest.mark.parametrize("case", _some_cases(60, seed=4), ids=str)
def test_tokens_hold_anywhere_in_the_matrix(models, case):
    assert not mismatches(models, case)


@pytest.mark.parametrize(("drafter", "tree"), DRAFTS)
def test_executors_agree_to_the_last_bit_at_equal_shape(models, drafter, tree):
    heard = {}
    for executor in EXECUTORS:
        shape = Shape(device="cuda", pad=4, depth=1, step_tokens=90, executor=executor)
        answers = run_case(models, Case(shape, False, "sampled", drafter, tree))
        heard[executor] = {name: (one.tokens, one.logprobs) for name, one in answers.items()}
    assert heard["graph"] == heard["eager"]
    assert heard["breakable"] == heard["eager"]


def test_a_batch_above_the_largest_recorded_size_runs_the_same_program(models, monkeypatch):
    from outrider.step import graph

    monkeypatch.setattr(graph, "MAX_RECORDINGS", 1)
    shape = Shape(device="cuda", pad=1, depth=1, step_tokens=90, executor="graph")
    assert not mismatches(models, Case(shape, False, "mixed", "relative", "tree"))
    assert not mismatches(models, Case(replace(shape, pad=4), True, "mixed", "eagle3", "chain"))
