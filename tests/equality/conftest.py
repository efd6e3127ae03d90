from functools import cache

import pytest
from support.embedded_prompts import poisoned_embeds as poisoned_embeds
from support.model_set import make_models
from support.styled_models import StyledModels


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    return make_models(tmp_path_factory.mktemp("models"), "cpu")


@pytest.fixture(scope="session")
def targets(models, tmp_path_factory):
    """Models for every target of the matrix."""
    latent = make_models(tmp_path_factory.mktemp("latent"), "cpu", "deepseek-v3")
    return {"llama": models, "deepseek-v3": latent}


@pytest.fixture(scope="session")
def models_of(tmp_path_factory):
    """Models whose layers differ from a Llama, by family."""
    return cache(lambda family: StyledModels(family, tmp_path_factory.mktemp("styled")))
