"""The environment chooses the folder of the cache."""

from pathlib import Path

import pytest

from outrider.hub.cache_location import cache_folder


def test_the_most_specific_variable_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/user")
    monkeypatch.delenv("OUTRIDER_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder() == Path("/home/user/.cache/outrider")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert cache_folder() == Path("/caches/outrider")
    monkeypatch.setenv("OUTRIDER_CACHE", "~/models")
    assert cache_folder() == Path("/home/user/models")
