"""`outrider bench speculation` on a tiny model, and how its numbers follow from the runs."""

import json

import pytest

from outrider.bench.speculation.prompt_kinds import Prompt, choose_prompts
from outrider.bench.speculation.speculation_report import (
    ALL,
    PLAIN,
    Cost,
    SpeculationReport,
    SpeculationRun,
)
from outrider.cli.main import run


def test_every_drafter_is_measured_on_every_kind_beside_plain_decoding(
    tiny_folder, tmp_path, capsys
):
    target = tmp_path / "out.json"
    command = ["bench", "speculation", "--model", str(tiny_folder), "--limit", "1", "--repeat", "2"]
    drafts = ["--draft", "ngram", "--draft", str(tiny_folder), "--steps", "2"]
    assert run([*command, *drafts, "--max-tokens", "6", "--json", str(target)]) == 0
    assert "vs plain" in capsys.readouterr().out
    found = json.loads(target.read_text())
    assert found["answers_that_differ"] == 0
    by_name = {(each["kind"], each["drafter"]): each for each in found["results"]}
    kinds, drafters = {kind for kind, _ in by_name}, {drafter for _, drafter in by_name}
    assert {"chat", "code", "math", ALL} <= kinds
    assert drafters == {PLAIN, "ngram", tiny_folder.name}
    assert by_name[ALL, PLAIN]["kept_rates"] == []
    twin = by_name[ALL, tiny_folder.name]
    assert twin["kept_rates"] == [1.0, 1.0]  # the target drafting for itself is always right
    assert twin["draft_s"] > 0 < by_name[ALL, "ngram"]["draft_s"]


def test_no_repetition_drafts_from_the_answer_of_another_one(tiny_folder, tmp_path):
    """Nor from the warm-up: the lookup of finished answers would find the whole answer."""
    found = []
    for repetitions in ("1", "3"):
        target = tmp_path / f"{repetitions}.json"
        command = ["bench", "speculation", "--model", str(tiny_folder), "--limit", "1"]
        command += ["--draft", "suffix", "--max-tokens", "40", "--repeat", repetitions]
        assert run([*command, "--json", str(target)]) == 0
        results = json.loads(target.read_text())["results"]
        found.append([each["kept_rates"] for each in results if each["drafter"] == "suffix"])
    assert found[0] == found[1]


def test_a_bad_size_is_refused_before_the_model_is_loaded(capsys):
    assert run(["bench", "speculation", "--nodes", "65"]) == 1
    assert "change --nodes" in capsys.readouterr().err


def test_prompts_of_a_file_are_named_by_source_and_ours_fill_the_other_kinds(tmp_path):
    path = tmp_path / "prompts.jsonl"
    sources = ["mbpp", "humaneval", "mbpp", "poetry"]
    lines = [{"source": source, "prompt": f"{i}"} for i, source in enumerate(sources)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '"no source"\n')
    chosen = choose_prompts([path], limit=2)
    by_kind = {}
    for prompt in chosen:
        by_kind.setdefault(prompt.kind, []).append(prompt.text)
    assert by_kind["code"] == ["0", "1"]
    assert by_kind["poetry"] == ["3"]
    assert by_kind["file"] == ["no source"]
    assert {"edit", "summary", "chat", "math"} <= by_kind.keys()
    assert all(len(texts) <= 2 for texts in by_kind.values())
    assert all(isinstance(prompt, Prompt) for prompt in chosen)


def made(kind, drafter, tokens, *, rounds, kept=(), total_s=1.0):
    cost = Cost(total_s=total_s, draft_s=0.2, catch_up_s=0.1)
    return SpeculationRun(
        kind=kind,
        drafter=drafter,
        tokens=tuple(tokens),
        rounds=rounds,
        accepted_per_position=kept,
        cost=cost,
    )


def test_the_numbers_of_a_share_are_those_of_its_runs_together():
    runs = (
        made("chat", PLAIN, [1, 2, 3], rounds=2),
        made("chat", "x", [1, 2, 3], rounds=1, kept=(1,), total_s=0.5),
        made("code", PLAIN, [4, 5, 6, 7, 8], rounds=4, total_s=3.0),
        made("code", "x", [4, 5, 6, 7, 9], rounds=3, kept=(1, 1), total_s=1.5),
    )
    report = SpeculationReport(setting=None, runs=runs)
    share = report.share(ALL, "x")
    assert share.tokens_per_s == pytest.approx((2 + 4) / 2.0)
    assert report.speedup(share) == pytest.approx(2.0)
    assert share.accepted_rates == (2 / 4, 1 / 4)
    assert share.accept_length == pytest.approx(1 + 3 / 4)
    assert share.cost.verify_s == pytest.approx(2.0 - 0.4 - 0.2)
    assert report.kinds == ("chat", "code", ALL)
    assert report.num_different == 1
