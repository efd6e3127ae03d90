import pytest
import torch
from outrider.models.loader import load_decoder
from support.tiny import save_tiny


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """A tiny Llama as transformers runs it, and as we load it."""
    folder = tmp_path_factory.mktemp("tiny-llama")
    theirs = save_tiny("llama", folder)
    return theirs, load_decoder(folder, dtype="float32", device=torch.device("cpu"))
