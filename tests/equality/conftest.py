import pytest
import torch
from support.matrix import Models
from support.tiny import save_tiny

from outrider.models.loader import load_decoder


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """A tiny Llama as transformers runs it and as we load it, and a relative of it to draft."""

    def load(name, **how):
        folder = tmp_path_factory.mktemp(name)
        theirs = save_tiny("llama", folder, **how)
        return theirs, load_decoder(folder, dtype="float32", device=torch.device("cpu"))

    theirs, target = load("target")
    _, relative = load("relative", disturbance=0.02)
    _, stranger = load("stranger", seed=7)
    return Models(theirs=theirs, target=target, relative=relative, stranger=stranger)
