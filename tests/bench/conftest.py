"""A tiny model in a folder with a tokenizer, and a torch whose threads are put back."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import tokenizers
import torch
from support.tiny import save_tiny
from tokenizers import models, pre_tokenizers


def write_tokenizer(folder: Path) -> None:
    """One token per letter."""
    vocab = {letter: token for token, letter in enumerate("?abcdefghijklmnopqrstuvwxyz", start=3)}
    backend = tokenizers.Tokenizer(models.WordLevel(vocab=vocab, unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    backend.save(str(folder / "tokenizer.json"))


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    save_tiny("llama", folder)
    write_tokenizer(folder)
    return folder


@pytest.fixture(scope="module", autouse=True)
def _own_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
