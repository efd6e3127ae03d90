"""The engine on a GPU gives the tokens of the reference decoder, drafting or not."""

import pytest
import torch
from support.engines import Shape
from support.matrix import LAWS, Case, mismatches
from support.model_set import make_models


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    torch.backends.cuda.matmul.allow_tf32 = False
    return make_models(tmp_path_factory.mktemp("models"), "cuda")


@pytest.mark.parametrize("pad", [1, 4])
@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(
    ("drafter", "tree"),
    [("none", "chain"), ("twin", "chain"), ("relative", "tree"), ("eagle3", "wide")],
)
def test_tokens_are_those_of_the_reference_decoder(models, drafter, tree, law, depth, pad):
    shape = Shape(device="cuda", pad=pad, depth=depth, step_tokens=90)
    assert not mismatches(models, Case(shape, False, law, drafter, tree))
