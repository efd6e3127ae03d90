import pytest
from support.model_set import make_models


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    return make_models(tmp_path_factory.mktemp("roles"), "cpu")
