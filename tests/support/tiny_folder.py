"""A tiny model in a folder with a tokenizer of one token per letter, for benchmarks."""

from pathlib import Path

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers

from support.tiny import save_tiny


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    save_tiny("llama", folder)
    write_tokenizer(folder)
    return folder


def write_tokenizer(folder: Path) -> None:
    vocab = {letter: token for token, letter in enumerate("?abcdefghijklmnopqrstuvwxyz", start=3)}
    backend = tokenizers.Tokenizer(models.WordLevel(vocab=vocab, unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    backend.save(str(folder / "tokenizer.json"))
