"""A short slice of the hostile campaign, and proof that it notices what it looks for."""

import json

import pytest

from hostile import broken_files, engine_lives
from hostile.campaign import main
from hostile.life_models import life_models
from hostile.parts import NAMES
from outrider.kv.reference_attention import ReferenceAttention


@pytest.fixture(autouse=True)
def _scratch(tmp_path_factory, monkeypatch):
    """Temporary folders of cases that run in this process."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path_factory.mktemp("scratch")))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", NAMES)
def test_a_short_campaign_finds_nothing(part, capsys):
    if part == "grammars":
        pytest.importorskip("xgrammar")
    assert main(["--only", part, "--minutes", "0.15", "--seed", "7"]) == 0
    shown = capsys.readouterr().out
    summary = json.loads(shown.splitlines()[-1])
    assert "seed 7" in shown
    assert summary["parts"][part]["cases"] > 0


@pytest.mark.slow
def test_keys_that_are_written_and_never_masked_are_noticed(monkeypatch, capsys):
    fill = ReferenceAttention._fill_decode
    life_models.cache_clear()

    def unmasked(self, group, scope):
        fill(self, group, scope)
        group.mask.fill_(True)

    monkeypatch.setattr(ReferenceAttention, "_fill_decode", unmasked)
    monkeypatch.setattr(engine_lives, "FAMILIES", ("llama",))
    assert any(main(["--only", "lives", "--case", str(case)]) for case in range(4))
    assert "again" not in capsys.readouterr().out


@pytest.mark.slow
def test_a_raw_error_while_loading_is_noticed(monkeypatch):
    monkeypatch.setattr(broken_files, "_answer", lambda model, draft: [][0])
    report = broken_files.run_case(3)
    assert "IndexError" in report.failures[0]


@pytest.mark.slow
def test_a_process_that_dies_while_loading_is_noticed(monkeypatch):
    import os

    monkeypatch.setattr(broken_files, "_answer", lambda model, draft: os.abort())
    report = broken_files.run_case(3)
    assert "SIGABRT" in report.failures[0]
