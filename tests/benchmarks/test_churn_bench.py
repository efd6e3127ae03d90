"""`python -m benchmarks churn`: requests that come and go through a real engine."""

import json

import pytest
from typer.testing import CliRunner

from benchmarks.__main__ import app, run

_SMALL = ["--body", "tiny", "--requests", "6", "--prompt", "9", "--answer", "5", "--device", "cpu"]


@pytest.mark.slow
def test_every_request_is_answered_in_every_way(tmp_path):
    target = tmp_path / "out.json"
    flags = [*_SMALL, "--rows", "2", "--dtype", "float32", "--json", str(target)]
    done = CliRunner().invoke(app, ["churn", *flags])
    assert done.exit_code == 0, done.output
    runs = json.loads(target.read_text())["runs"]
    assert [each["way"] for each in runs] == ["plain", "fixed", "adaptive"]
    for each in runs:
        assert each["tokens"]["emitted"] == 6 * 5
        assert sum(step["emitted"] for step in each["steps"]) >= 6 * 5
        assert sum(step["prompt_tokens"] for step in each["steps"]) >= 6 * 4
    assert "us/token" in done.output


def test_unknown_ways_are_refused_by_name(capsys):
    assert run(["churn", *_SMALL, "--ways", "plain,best"]) == 1
    assert "choose from plain, fixed, adaptive" in capsys.readouterr().err
