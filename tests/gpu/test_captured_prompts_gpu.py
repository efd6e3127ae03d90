"""The same on a GPU: the third prompt of a shape is replayed from a graph with a drafter in it."""

import pytest
import torch
from support.captured_prompts import run_prompts
from support.engines import Shape
from support.model_set import make_models


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return make_models(tmp_path_factory.mktemp("models"), "cuda")


@pytest.mark.parametrize("executor", ["graph", "breakable"])
@pytest.mark.parametrize("drafter", ["eagle3", "eagle", "mtp", "relative"])
def test_the_third_prompt_of_a_shape_is_replayed_and_equals_eager(models, drafter, executor):
    usual = {"device": "cuda", "pad": 16, "step_tokens": 64, "arithmetic": "fixed"}
    eager = run_prompts(models, Shape(**usual), drafter)
    replayed = run_prompts(models, Shape(**usual, executor=executor), drafter)
    for number, (one, other) in enumerate(zip(eager, replayed, strict=True)):
        assert (one.tokens, one.trees) == (other.tokens, other.trees)
        for expected, got in zip(one.pools, other.pools, strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
        if number >= 2:
            assert (other.num_eager, other.num_steps > 0) == (0, True)
        assert other.num_breaks == 0  # one segment: attention is part of the graph
