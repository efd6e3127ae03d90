import pytest
from support.model_set import make_models


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    return make_models(tmp_path_factory.mktemp("models"), "cpu")


@pytest.fixture(scope="session")
def targets(models, tmp_path_factory):
    """Models for every target of the matrix."""
    latent = make_models(tmp_path_factory.mktemp("latent"), "cpu", "deepseek-v3")
    return {"llama": models, "deepseek-v3": latent}
