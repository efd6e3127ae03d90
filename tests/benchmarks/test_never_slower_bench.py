"""`python -m benchmarks never-slower`: the table of all loads, at toy size on a CPU."""

import json

import pytest
from typer.testing import CliRunner

from benchmarks.__main__ import app, run
from benchmarks.never_slower.never_args import (
    LoadPlace,
    NeverLimits,
    NeverWork,
    TextLevel,
    parse_texts,
)
from benchmarks.never_slower.never_table import TimedRun, cells_of, markdown_of
from outrider.bench.churn.churn_run import ChurnRun, ChurnStep, ChurnTokens, LoadTime

_TINY = ["--body", "tiny", "--device", "cpu", "--dtype", "float32", "--rows", "1,3"]
_SHORT = ["--prompt", "9", "--answer", "6", "--steady-answer", "60", "--seconds", "0.05"]
_STEP = ChurnStep(
    decode_tokens=1, prompt_tokens=0, emitted=1, is_eager=False, busy_s=0.1, submit_s=0.1
)
EASY, HARD = TextLevel(name="easy", chance=0.9), TextLevel(name="hard", chance=0.1)
PLACE = LoadPlace(rows=8, kind="churn")


def timed(way, text, tokens_per_s, place=PLACE):
    run = ChurnRun(
        way=way,
        rows=place.rows,
        time=LoadTime(seconds=1.0, occupancy=1.0),
        tokens=ChurnTokens(emitted=tokens_per_s, rounds=1, drafted=0, accepted=0),
        steps=(_STEP,),
    )
    return TimedRun(place=place, text=text, run=run)


RUNS = [
    timed("plain", "", 1000),
    timed("chain of 2", "easy", 1500),
    timed("chain of 4", "easy", 2000),
    timed("adaptive", "easy", 1930),
    timed("chain of 2", "hard", 900),
    timed("chain of 4", "hard", 700),
    timed("adaptive", "hard", 980),
]


@pytest.mark.slow
def test_every_load_is_measured_in_every_way(tmp_path):
    numbers, table = tmp_path / "out.json", tmp_path / "out.md"
    files = ["--json", str(numbers), "--markdown", str(table)]
    done = CliRunner().invoke(app, ["never-slower", *_TINY, *_SHORT, *files])
    assert done.exit_code == 0, done.output
    written = json.loads(numbers.read_text())
    assert len(written["cells"]) == 2 * 2 * 3  # rows, kinds, texts
    assert len(written["runs"]) == 2 * 2 * (1 + 3 * 3)
    for each in written["runs"]:
        assert each["tokens"]["emitted"] >= each["rows"]
        is_plain = each["way"] == "plain"
        assert (each["tokens"]["drafted"] == 0) is is_plain or each["way"] == "adaptive"
        assert ("steps" in each) is (each["way"] == "adaptive")
    assert all(text in done.output for text in ("hard 0.1", "of 24 ratios", "fresh engines"))
    assert table.read_text().count("\n| ") == 1 + 2 * 2 * 3  # the line below the titles, and cells
    assert max(map(len, done.output[done.output.index(" R ") :].splitlines())) <= 110


@pytest.mark.slow
def test_the_chance_of_a_text_holds_in_loads_one_after_another(tmp_path):
    numbers = tmp_path / "out.json"
    flags = [*_TINY, *_SHORT, "--kinds", "steady", "--seconds", "1", "--json", str(numbers)]
    flags.append("--keep-engines")
    assert run(["never-slower", *flags]) == 0
    for each in json.loads(numbers.read_text())["runs"]:
        if each["rows"] == 3 and each["way"] == "chain of 2":
            chance = {"easy": 0.9, "mixed": 0.5, "hard": 0.1}[each["text"]]
            assert each["tokens"]["per_round"] == pytest.approx(1 + chance + chance**2, abs=0.35)


def test_a_run_without_time_says_which_loads_it_left_out(tmp_path, capsys):
    numbers = tmp_path / "out.json"
    limit = ["--time-limit", "0.001", "--json", str(numbers)]
    assert run(["never-slower", *_TINY, *_SHORT, *limit]) == 0
    written = json.loads(numbers.read_text())
    assert written["runs"] == []
    assert len(written["dropped"]) == 2 * 2 * 3
    assert "Not measured, the time was over: 1 rows, steady, easy;" in capsys.readouterr().out


def test_adaptive_drafting_is_compared_with_plain_decoding_and_the_fastest_chain():
    easy, hard = cells_of(RUNS, (EASY, HARD))
    assert (easy.fixed.way, hard.fixed.way) == ("chain of 4", "chain of 2")
    assert (easy.to_plain, easy.to_best) == (1.93, 0.965)
    assert (easy.num_misses, hard.num_misses) == (1, 0)


def test_misses_are_bold_and_only_complete_texts_are_in_the_table():
    other = LoadPlace(rows=1, kind="steady")
    begun = [timed("plain", "", 9, other), timed("chain of 2", "easy", 9, other)]
    table = markdown_of(cells_of([*RUNS, *begun], (EASY, HARD)), ["1 rows, steady, easy"])
    lines = table.splitlines()
    assert lines[2].endswith("| chain of 4 | 1,930 | 1.930 | **0.965** |")
    assert lines[3].endswith("| chain of 2 | 980 | 0.980 | 1.089 |")
    assert "Missed: 1 of 4 ratios." in table
    assert "over: 1 rows, steady, easy." in table


def test_important_numbers_of_rows_come_first_and_large_ones_take_longer():
    limits = NeverLimits(prompt=86, answer=64, steady_answer=576, seconds=1.0)
    work = NeverWork(
        rows=(2, 3, 64, 1),
        kinds=("steady",),
        texts=(EASY,),
        chains=(2, 4),
        limits=limits,
        keeps_engines=False,
    )
    assert [place.rows for place in work.places()] == [1, 64, 2, 3]
    assert work.num_loads == 4 * (1 + 3)
    assert limits.load_s(256) == 3.0
    assert limits.longest == 86 + 43 + 576


WRONG = [
    (["--texts", "easy"], "give a chance from 0 to 1"),
    (["--texts", "easy=1.5"], "give a chance from 0 to 1"),
    (["--texts", ""], "--texts is empty"),
    (["--kinds", "calm"], "choose from steady, churn"),
    (["--chains", "0"], "--chains has '0'"),
]


@pytest.mark.parametrize(("flags", "reason"), WRONG, ids=str)
def test_a_wrong_flag_is_answered_with_its_name(flags, reason, capsys):
    assert run(["never-slower", *_TINY, *flags]) == 1
    assert reason in capsys.readouterr().err


def test_texts_have_their_names_and_chances():
    assert parse_texts("easy=0.9, hard=0.1") == (EASY, HARD)
