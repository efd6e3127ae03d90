"""`python -m benchmarks host`: the engine over a device that runs nothing."""

import json

import pytest
from typer.testing import CliRunner

from benchmarks.__main__ import app, run


def measured(tmp_path, *flags):
    """What the command wrote, and what it showed."""
    target = tmp_path / "out.json"
    done = CliRunner().invoke(app, ["host", *flags, "--json", str(target)])
    assert done.exit_code == 0, done.output
    return json.loads(target.read_text()), done.output


@pytest.mark.slow
def test_every_number_of_rows_is_timed_plain_and_drafting(tmp_path):
    found, shown = measured(tmp_path, "--rows", "1,3", "--tokens", "6")
    assert [(cost["way"], cost["rows"]) for cost in found["costs"]] == [
        ("plain", 1),
        ("plain", 3),
        ("chain of 5", 1),
        ("chain of 5", 3),
    ]
    for cost in found["costs"]:
        assert len(cost["steps_s"]) == 6
        assert cost["row_s"] == pytest.approx(cost["step_s"] / cost["rows"])
    assert "us/row" in shown
    assert max(map(len, shown.splitlines())) <= 100


def test_a_profile_names_functions_and_how_often_a_step_calls_them(tmp_path):
    flags = ["--rows", "3", "--draft-steps", "0", "--tokens", "6", "--profile"]
    found, shown = measured(tmp_path, *flags)
    (cost,) = found["costs"]
    calls = {share["name"].rpartition(" ")[2]: share["calls"] for share in cost["profile"]}
    assert calls["submit"] == 1.0
    assert calls["append"] == 3.0  # tokens of a row
    assert "calls/step" in shown


def test_a_chain_cannot_emit_more_than_it_has(capsys):
    assert run(["host", "--draft-steps", "2", "--emitted", "4"]) == 1
    assert "at most 3 tokens" in capsys.readouterr().err


def test_a_chain_is_no_longer_than_a_tree_may_be(capsys):
    assert run(["host", "--draft-steps", "64"]) != 0
    assert "--draft-steps" in capsys.readouterr().err


def test_steps_that_outgrow_the_model_are_refused_by_flags_of_this_command(capsys):
    assert run(["host", "--rows", "1", "--tokens", "3000"]) == 1
    shown = capsys.readouterr()
    assert "lower --tokens, --draft-steps or --rows" in shown.err
    assert "--prompt" not in shown.err
    assert "plain, 1 rows" not in shown.err  # nothing was measured first


@pytest.mark.parametrize(
    ("draft_steps", "most"), [(0, 30), pytest.param(5, 36, marks=pytest.mark.slow)]
)
def test_a_decoding_row_costs_few_calls(draft_steps, most, tmp_path):
    """Counts, not times: with a record per row and step they were 73 and 80."""
    flags = ["--rows", "20,60", "--draft-steps", str(draft_steps), "--tokens", "32", "--profile"]
    found, _ = measured(tmp_path, *flags)
    few, many = (sum(share["calls"] for share in cost["profile"]) for cost in found["costs"][-2:])
    assert 0 < (many - few) / 40 < most
