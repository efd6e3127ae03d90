import pytest
from support.recurrent import CPU, FAMILIES, saved_recurrent

from outrider.models.target import load_target


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """Of a tiny model of every family with recurrent layers."""
    return {name: tmp_path_factory.mktemp("recurrent") for name in FAMILIES}


@pytest.fixture(scope="session", params=list(FAMILIES))
def family(request):
    return request.param


@pytest.fixture(scope="session")
def folder(folders, family):
    saved_recurrent(folders[family], family)
    return folders[family]


@pytest.fixture(scope="session")
def theirs(folders, family):
    return saved_recurrent(folders[family], family)


@pytest.fixture(scope="session")
def target(folder):
    return load_target(folder, dtype="float32", device=CPU)
