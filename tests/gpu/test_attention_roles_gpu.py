"""On a GPU: layers that plan for themselves give the bits of a plan that is filled once."""

import pytest
import torch
from support.captured_prompts import run_prompts
from support.engines import Shape
from support.matrix import Case, mismatches
from support.model_set import make_models

EXECUTORS = ["eager", "graph", "breakable"]
ROLES = [("per_layer", "per_layer"), ("triton", "per_layer"), ("per_layer", "triton")]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    torch.backends.cuda.matmul.allow_tf32 = False
    return make_models(tmp_path_factory.mktemp("models"), "cuda")


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("roles", ROLES, ids="-".join)
@pytest.mark.parametrize("drafter", ["eagle3", "relative"])
def test_layers_that_plan_for_themselves_leave_the_same_drafts_and_kv(
    models, drafter, roles, executor
):
    usual = {"device": "cuda", "pad": 16, "step_tokens": 64, "arithmetic": "fixed"}
    own = {"attention": roles[0], "draft_attention": roles[1]}
    planned = run_prompts(models, Shape(**usual, executor=executor), drafter)
    found = run_prompts(models, Shape(**usual, **own, executor=executor), drafter)
    for right, got in zip(planned, found, strict=True):
        assert (got.tokens, got.trees) == (right.tokens, right.trees)
        assert all(torch.equal(a, b) for a, b in zip(got.pools, right.pools, strict=True))


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("roles", ROLES, ids="-".join)
@pytest.mark.parametrize("is_prefix_hit", [False, True])
def test_tokens_are_those_of_the_reference_decoder(models, is_prefix_hit, roles, executor):
    shape = Shape(
        device="cuda",
        pad=4,
        depth=1,
        step_tokens=90,
        executor=executor,
        attention=roles[0],
        draft_attention=roles[1],
    )
    assert not mismatches(models, Case(shape, is_prefix_hit, "mixed", "eagle3", "wide"))
