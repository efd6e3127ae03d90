"""On a GPU, models whose layers differ from a Llama give the tokens of the reference decoder."""

from functools import cache

import pytest
import torch
from support.styled_families import STYLED_FAMILIES
from support.styled_models import StyledModels, mismatches

DRAFTS = [("none", "chain"), ("ngram", "tree"), ("relative", "tree"), ("eagle3", "chain")]


@pytest.fixture(scope="module")
def models_of(tmp_path_factory):
    torch.backends.cuda.matmul.allow_tf32 = False
    return cache(lambda family: StyledModels(family, tmp_path_factory.mktemp("styled"), "cuda"))


@pytest.mark.parametrize("executor", ["eager", "graph"])
@pytest.mark.parametrize(("drafter", "tree"), DRAFTS)
@pytest.mark.parametrize("family", STYLED_FAMILIES)
def test_tokens_are_those_of_the_reference_decoder(models_of, family, drafter, tree, executor):
    seed = list(STYLED_FAMILIES).index(family)
    case = {"drafter": drafter, "tree": tree, "is_hit": seed % 2, "seed": seed}
    assert not mismatches(models_of(family), **case, device="cuda", executor=executor)
