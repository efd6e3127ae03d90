"""Tiny GGUF files, and an empty cache."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.gguf_files import TinyGguf, tiny_gguf


@pytest.fixture
def make_gguf() -> Callable[..., TinyGguf]:
    return tiny_gguf


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache. Its folder is created on first use."""
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "converted-1"
