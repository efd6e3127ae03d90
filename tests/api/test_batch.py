"""Batch files: every line once, through kills and bad lines."""

import json

import pytest

from outrider.api.batch.journal import Journal
from outrider.api.batch.run import Batch, BatchDefaults, count_lines
from outrider.api.params import SamplingParams
from outrider.api.prompts import TextPrompt
from outrider.errors import ConfigError

DEFAULTS = BatchDefaults(
    params=SamplingParams(max_tokens=6, seed=1, ignore_eos=True), framing=TextPrompt, window=2
)
LINES = [
    "the rider",
    {"id": "b", "prompt": "goes ahead", "params": {"max_tokens": 2}},
    {"id": "c", "prompt_token_ids": [5, 6, 7]},
    {"id": "d", "messages": [{"role": "user", "content": "hi"}]},
    {"id": "e", "prompt": "the road"},
]


@pytest.fixture
def files(tmp_path):
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    return source, target


def run(frontend, files):
    source, target = files
    with Journal(target) as journal:
        total = count_lines(source, journal)
        Batch(frontend, DEFAULTS, journal).run(source, lambda _tokens: None)
    return total


def records(target):
    return {record["line"]: record for record in map(json.loads, target.read_text().splitlines())}


def test_every_line_is_answered_once_with_its_id(frontend, files):
    assert run(frontend, files) == 5
    lines = files[1].read_text().splitlines()
    assert len(lines) == 5
    answers = records(files[1])
    assert [answers[number]["id"] for number in range(5)] == [0, "b", "c", "d", "e"]
    assert [len(answers[number]["token_ids"]) for number in range(5)] == [6, 2, 6, 6, 6]


@pytest.mark.parametrize("cut", [0, 1, 40, 300, 700, 10**6])
def test_a_killed_run_is_resumed_without_losing_or_repeating_a_line(frontend, files, cut):
    run(frontend, files)
    whole = records(files[1])
    files[1].write_bytes(files[1].read_bytes()[:cut])  # killed while a line was being written
    run(frontend, files)
    assert len(files[1].read_text().splitlines()) == 5
    resumed = records(files[1])
    for number, record in whole.items():
        assert resumed[number]["token_ids"] == record["token_ids"]


def test_a_finished_batch_is_not_touched_again(frontend, files):
    run(frontend, files)
    before = files[1].read_bytes()
    run(frontend, files)
    assert files[1].read_bytes() == before


def test_a_bad_line_gets_its_error_and_the_others_their_answers(frontend, files):
    bad = ["{", "7", '{"id": "x", "prompt": ""}', '{"id": "y", "prompt": "a", "params": {"n": 0}}']
    bad += ['{"prompt": "a", "messages": []}', '{"prompt_token_ids": [999]}', '{"promt": "a"}']
    bad += ['{"prompt": 3}', '{"prompt": "a", "params": 3}', '{"messages": 3}']
    with files[0].open("a") as source:
        source.write("\n".join(bad))
    run(frontend, files)
    answers = records(files[1])
    assert len(answers) == 5 + len(bad)
    assert all("text" in answers[number] for number in range(5))
    assert all("error" in answers[number] for number in range(5, 5 + len(bad)))
    assert [answers[7]["id"], answers[8]["id"]] == ["x", "y"]


def test_blank_lines_are_no_requests(frontend, files):
    files[0].write_text('"a"\n\n  \n"b"\n')
    assert run(frontend, files) == 2
    assert sorted(records(files[1])) == [0, 3]


def test_lines_added_later_are_answered_by_the_next_run(frontend, files):
    run(frontend, files)
    with files[0].open("a") as source:
        source.write('"one more"\n')
    run(frontend, files)
    assert sorted(records(files[1])) == [0, 1, 2, 3, 4, 5]


def test_a_changed_input_line_is_refused_before_anything_runs(frontend, files):
    run(frontend, files)
    files[0].write_text(files[0].read_text().replace("the rider", "the writer"))
    with pytest.raises(ConfigError, match=r"line 1 changed.*another --output"):
        run(frontend, files)


def test_an_input_that_lost_answered_lines_is_refused(frontend, files):
    run(frontend, files)
    files[0].write_text('"the rider"\n')
    with pytest.raises(ConfigError, match="lacks lines"):
        run(frontend, files)


def test_a_file_of_something_else_is_not_overwritten(frontend, files):
    files[1].write_text("my notes\n")
    with pytest.raises(ConfigError, match="another --output"):
        run(frontend, files)
    assert files[1].read_text() == "my notes\n"


def test_a_file_without_newline_that_is_not_ours_is_not_cut(frontend, files):
    files[1].write_text("my notes")
    with pytest.raises(ConfigError, match="another --output"):
        run(frontend, files)
    assert files[1].read_text() == "my notes"
