"""A real tokenizer of fifty tokens, an engine on paper that speaks it, and a tiny real model."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from outrider.engine.engine import Engine
from outrider.frontend.frontend import Frontend
from outrider.frontend.tokenizer.tokenizer import NoTokenizer, Tokenizer, load_tokenizer
from support.paper import PaperRunner, facts
from support.spoken import tiny_llama, write_tokenizer


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    loaded = load_tokenizer(folder)
    assert isinstance(loaded, Tokenizer)
    return loaded


@pytest.fixture(scope="session")
def make_frontend(tokenizer: Tokenizer) -> Callable[..., Frontend]:
    """Makes a front end over the real engine; the model on paper is a hash of the history."""

    def make(own: Tokenizer | NoTokenizer = tokenizer, **sizes) -> Frontend:
        known = facts(**{"max_context": 128, "num_pages": 256, **sizes})
        return Frontend(Engine(PaperRunner(known, random.Random(1)), known), own)

    return make


@pytest.fixture
def frontend(make_frontend: Callable[..., Frontend]) -> Frontend:
    return make_frontend()


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of two layers with random weights and the tokenizer above."""
    folder = tmp_path_factory.mktemp("model")
    tiny_llama().save_pretrained(folder)
    write_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def ids_only_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model without the files of a tokenizer."""
    folder = tmp_path_factory.mktemp("ids_only")
    tiny_llama().save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def draft_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A disturbed copy of that model: it agrees with the original now and then."""
    import torch

    folder = tmp_path_factory.mktemp("draft")
    model = tiny_llama()
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def foreign_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model with two letters of the tokenizer swapped."""
    folder = tmp_path_factory.mktemp("foreign")
    tiny_llama().save_pretrained(folder)
    write_tokenizer(folder)
    path = folder / "tokenizer.json"
    swapped = json.loads(path.read_text())
    vocab = swapped["model"]["vocab"]
    vocab["y"], vocab["z"] = vocab["z"], vocab["y"]
    path.write_text(json.dumps(swapped))
    return folder
