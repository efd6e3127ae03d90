"""On a GPU, recorded or not, rounds tell how every token came."""

import pytest
import torch
from support.engines import Shape, engine_of
from support.model_set import make_models
from support.rounds import assert_accounted_for, drafts_of


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    torch.backends.cuda.matmul.allow_tf32 = False
    return make_models(tmp_path_factory.mktemp("models"), "cuda")


@pytest.mark.parametrize("executor", ["eager", "graph", "breakable"])
@pytest.mark.parametrize("draft", ["none", "chain", "tree", "model"])
def test_every_token_of_a_traced_output_is_accounted_for(models, draft, executor):
    shape = Shape(device="cuda", executor=executor, depth=1, pad=4, step_tokens=60)
    engine = engine_of(models.target, shape, drafts_of(models)[draft])
    assert_accounted_for(engine, drafts=draft != "none")
