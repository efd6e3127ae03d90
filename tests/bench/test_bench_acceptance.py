"""`outrider bench acceptance` on a tiny model, and how its numbers follow from the answers."""

import json

import pytest

from outrider.bench.acceptance.acceptance_args import choose_questions, name_of, parse_tree
from outrider.bench.acceptance.acceptance_report import (
    ALL,
    AcceptanceAnswer,
    AcceptanceReport,
    Setup,
)
from outrider.cli.bench_flags import short_names
from outrider.cli.main import run
from outrider.config.draft_config import TreeSize
from outrider.errors import ConfigError


def test_every_drafter_tree_and_temperature_is_measured_by_source(tiny_folder, tmp_path, capsys):
    prompts, target = tmp_path / "p.jsonl", tmp_path / "out.json"
    lines = [{"source": source, "prompt": "abc"} for source in ("x", "y", "x")]
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = ["bench", "acceptance", "--prompts", str(prompts), "--model", str(tiny_folder)]
    flags = ["--draft", str(tiny_folder), "--draft", "ngram", "--max-tokens", "7"]
    trees = ["--tree", "2", "--tree", "2x2x5", "--json", str(target), "--device", "cpu"]
    assert run([*command, *flags, *trees]) == 0
    assert "tokens" in capsys.readouterr().out
    found = json.loads(target.read_text())["results"]
    by_setup = {
        (each["drafter"], each["tree"], each["temperature"], each["source"]): each for each in found
    }
    assert len(by_setup) == 2 * 2 * 2 * 3
    for temperature in (0.0, 1.0):
        twin = by_setup[tiny_folder.name, "chain of 2", temperature, ALL]
        assert twin["prompts"] == 3
        # The target drafting for itself is always right: 1 token, then two rounds of 3.
        assert twin["kept_rates"] == [1.0, 1.0]
        assert twin["accept_length"] == pytest.approx(3.0)


def test_the_numbers_of_a_share_are_those_of_its_answers_together():
    setup = Setup(drafter="d", tree="chain of 2", temperature=0.0)
    answers = (
        AcceptanceAnswer(setup=setup, source="x", tokens=5, rounds=3, accepted_per_position=(1,)),
        AcceptanceAnswer(setup=setup, source="y", tokens=4, rounds=1, accepted_per_position=(1, 1)),
    )
    report = AcceptanceReport(model="m", device="cpu", max_tokens=5, answers=answers)
    x, y, both = report.shares()
    assert [share.source for share in (x, y, both)] == ["x", "y", ALL]
    assert both.accepted_rates == (2 / 4, 1 / 4)
    assert both.accept_length == pytest.approx(1.75)
    assert y.accept_length == pytest.approx(3.0)


def test_trees_are_written_as_steps_or_as_all_three_sizes():
    assert parse_tree("4") == TreeSize(steps=4, topk=1, nodes=5)
    assert parse_tree("4x4x16") == TreeSize(steps=4, topk=4, nodes=16)
    assert name_of(parse_tree("4x4x16")) == "4 x 4, 16 nodes"
    for bad in ("", "4x4", "axbxc"):
        with pytest.raises(ConfigError, match="STEPSxTOPKxNODES"):
            parse_tree(bad)


def test_a_limit_takes_the_first_prompts_of_each_source(tmp_path):
    path = tmp_path / "p.jsonl"
    lines = [{"source": "ab"[i % 2], "prompt": str(i)} for i in range(6)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [each.text for each in choose_questions(path, limit=2)] == ["0", "1", "2", "3"]
    assert len(choose_questions(path, limit=0)) == 6


def test_heads_of_two_runs_are_told_apart_by_their_whole_paths():
    shown = short_names(["runs/a/head", "runs/b/head", "other/thing", "ngram"])
    assert list(shown.values()) == ["runs/a/head", "runs/b/head", "thing", "ngram"]


def test_a_model_that_nothing_drafts_for_is_refused(tiny_folder, tmp_path, capsys):
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "a"}\n')
    command = ["bench", "acceptance", "--prompts", str(path), "--model", str(tiny_folder)]
    assert run([*command, "--draft", "none"]) == 1
    assert "name a drafter with --draft" in capsys.readouterr().err
