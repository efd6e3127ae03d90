import pytest
import torch
from support.v4 import saved_v4

from outrider.models.target import load_target


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """Of a tiny DeepSeek-V4."""
    folder = tmp_path_factory.mktemp("v4")
    saved_v4(folder)
    return folder


@pytest.fixture(scope="session")
def theirs(folder):
    return saved_v4(folder)


@pytest.fixture(scope="session")
def target(folder):
    return load_target(folder, dtype="float32", device=torch.device("cpu"))
