"""Prefill and decode engines on one GPU, captured and a step ahead: the rounds of one engine."""

import pytest
import torch
from support.engines import Shape
from support.model_set import make_models
from support.role_traces import assert_same_rounds, draft_of, submissions
from support.row_matrix import shape_of
from support.row_models import row_model

GRAPHS = {"device": "cuda", "executor": "breakable", "depth": 1, "arithmetic": "fixed"}


@pytest.fixture(scope="module", name="models")
def models_on_the_gpu(tmp_path_factory):
    torch.backends.cuda.matmul.allow_tf32 = False
    return make_models(tmp_path_factory.mktemp("roles"), "cuda")


@pytest.mark.parametrize("backend", ["tcp", "nixl"])
@pytest.mark.parametrize("sampling", ["greedy", "sampled"])
@pytest.mark.parametrize("name", ["none", "ngram", "relative", "eagle3", "mtp", "modules"])
def test_pages_travel(models, name, sampling, backend):
    draft, asked = draft_of(models, name), submissions(sampling)
    assert_same_rounds(models.target, draft, asked, shape=Shape(**GRAPHS), backend=backend)


@pytest.mark.parametrize("backend", ["tcp", "nixl"])
@pytest.mark.parametrize("family", ["v4", "qwen3-next", "qwen3-next-2"])
def test_row_state_travels(family, backend):
    torch.backends.cuda.matmul.allow_tf32 = False
    target, drafts = row_model(family, "cuda")
    shape = shape_of(drafts["modules"], chunk=64, **GRAPHS)
    asked = submissions("greedy")
    assert_same_rounds(target, drafts["modules"], asked, shape=shape, backend=backend)
