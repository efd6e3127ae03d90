"""The engine on a GPU gives the tokens of the reference decoder, drafting or not."""

import pytest
import torch
from support.engines import Shape
from support.matrix import LAWS, Case, Models, mismatches
from support.tiny import save_tiny

from outrider.models.loader import load_decoder


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    torch.backends.cuda.matmul.allow_tf32 = False

    def load(name, **how):
        folder = tmp_path_factory.mktemp(name)
        theirs = save_tiny("llama", folder, **how)
        return theirs, load_decoder(folder, dtype="float32", device=torch.device("cuda"))

    theirs, target = load("target")
    _, relative = load("relative", disturbance=0.02)
    _, stranger = load("stranger", seed=7)
    return Models(theirs=theirs, target=target, relative=relative, stranger=stranger)


@pytest.mark.parametrize("pad", [1, 4])
@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(
    ("drafter", "tree"),
    [("none", "chain"), ("twin", "chain"), ("relative", "tree"), ("stranger", "wide")],
)
def test_tokens_are_those_of_the_reference_decoder(models, drafter, tree, law, depth, pad):
    shape = Shape(device="cuda", pad=pad, depth=depth, step_tokens=90)
    assert not mismatches(models, Case(shape, False, law, drafter, tree))
