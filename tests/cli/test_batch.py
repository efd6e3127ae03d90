"""Batch files: every line once, through kills and bad lines."""

import json
import resource
from contextlib import contextmanager
from dataclasses import replace

import pytest

from outrider.cli.batch.batch_input import decode_line, read_lines
from outrider.cli.batch.batch_output import BatchOutput
from outrider.cli.batch.openai_lines import OpenAiLine
from outrider.cli.batch.run_batch import BatchDefaults, BatchRun, count_lines
from outrider.errors import ConfigError
from outrider.frontend.prompts import TextPrompt
from outrider.frontend.sampling_params import SamplingParams

DEFAULTS = BatchDefaults(
    params=SamplingParams(max_tokens=6, seed=1, ignore_eos=True),
    framing=TextPrompt,
    max_in_flight=2,
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
    with BatchOutput(target) as journal:
        total = count_lines(source, journal)
        BatchRun(frontend, DEFAULTS, journal).run(source, lambda _tokens: None)
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


@contextmanager
def largest_file(num_bytes):
    """Acts as a full disk does, for files of this process only."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_one_error_that_names_the_file(frontend, files):
    with (
        largest_file(300),
        pytest.raises(ConfigError, match=r"cannot write .*out\.jsonl") as caught,
    ):
        run(frontend, files)
    assert "\n" not in str(caught.value)
    run(frontend, files)  # there is room again
    assert sorted(records(files[1])) == [0, 1, 2, 3, 4]


def test_a_line_without_room_is_left_to_the_next_run(make_frontend, files):
    source, target = files
    source.write_text('"a"\n{"prompt": "b", "n": 3}\n')
    with BatchOutput(target) as journal:
        batch = BatchRun(make_frontend(max_queued=2), DEFAULTS, journal)
        batch.run(source, lambda _tokens: None)
        assert (len(batch.refusals), journal.num_failed) == (1, 0)
    assert sorted(records(target)) == [0]
    run(make_frontend(), files)
    assert len(records(target)[1]["outputs"]) == 3


def test_failures_of_an_earlier_run_are_counted(frontend, files):
    files[0].write_text('"a"\n7\n')
    run(frontend, files)
    with files[0].open("a") as source:
        source.write("8\n")
    with BatchOutput(files[1]) as journal:
        assert journal.num_failed == 1
        BatchRun(frontend, DEFAULTS, journal).run(files[0], lambda _tokens: None)
        assert journal.num_failed == 2


def test_sampling_parameters_may_stand_beside_the_prompt(frontend, files):
    lines = [
        {"prompt": "a", "max_tokens": 2, "speculative": "off"},
        {"prompt": "a", "params": {"max_tokens": 2}},
        {"prompt": "a", "max_tokens": 2, "params": {"max_tokens": 3}},
        {"prompt": "a", "max_token": 2},
        {"prompt": "a", "max_tokens": -1},
    ]
    files[0].write_text("".join(json.dumps(line) + "\n" for line in lines))
    run(frontend, files)
    answers = records(files[1])
    assert [len(answers[number]["token_ids"]) for number in (0, 1)] == [2, 2]
    assert "'max_tokens' twice" in answers[2]["error"]
    assert "unknown key 'max_token'" in answers[3]["error"]
    assert "max_tokens must be" in answers[4]["error"]


def test_the_system_message_opens_conversations_that_have_none(frontend, files):
    source, target = files
    system, user = ({"role": role, "content": "hi"} for role in ("system", "user"))
    source.write_text(
        "".join(json.dumps({"messages": each}) + "\n" for each in ([user], [system, user]))
    )
    with BatchOutput(target) as journal:
        defaults = replace(DEFAULTS, system="be kind")
        BatchRun(frontend, defaults, journal).run(source, lambda _tokens: None)
    lengths = [records(target)[number]["prompt_tokens"] for number in (0, 1)]
    kind = {"role": "system", "content": "be kind"}
    rendered = [frontend.inputs.render(each) for each in ([kind, user], [system, user])]
    assert lengths == [len(frontend.inputs.encode(each)) for each in rendered]


HOSTILE = [
    b"[" * 200_000,
    b'{"id": "\\ud800", "prompt": "a"}',
    b'{"id": "\\ud800", "prompt": ""}',
    b'{"\\ud800": 1, "\\udfff": 2}',
    b'{"id": ' + b"[" * 300 + b"]" * 300 + b', "prompt": "a"}',
    b'{"id": NaN, "prompt": "a"}',
    b'{"id": 1e999, "prompt": "a"}',
    b'{"prompt": "\\ud800"}',
    b'{"prompt": "a", "logit_bias": {"\\ud800": 1}}',
    b'{"messages": [{"role": "\\ud800", "content": "a"}]}',
    b"\xff\xfe",
]


def test_hostile_lines_end_neither_the_batch_nor_its_next_run(frontend, files):
    with files[0].open("ab") as source:
        source.write(b"\n".join(HOSTILE) + b'\n{"id": "last", "prompt": "the road"}\n')
    total = run(frontend, files)
    answers = records(files[1])
    assert len(answers) == total == 6 + len(HOSTILE)
    assert [answers[number]["id"] for number in (5, 6, 7, 9, 10, 11)] == [
        *(5, "\ud800", "\ud800"),
        *(9, 10, 11),  # their ids cannot be written as JSON
    ]
    assert all("text" in answers[number] for number in (*range(5), 6, 9, 16))
    assert all("error" in answers[number] for number in (5, 7, 8, 12, 13, 15))
    before = files[1].read_bytes()
    run(frontend, files)
    assert files[1].read_bytes() == before


def test_lines_of_openais_batch_files_are_answered_in_its_format(frontend, tmp_path):
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    chat = {"model": "any", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
    urls = {"a": "/v1/chat/completions", "b": "/v1/completions", "c": "/v1/embeddings"}
    bodies = {"a": chat, "b": {"prompt": "the road", "max_tokens": 2, "n": 2}, "c": {}}
    lines = [
        {"custom_id": name, "method": "POST", "url": urls[name], "body": bodies[name]}
        for name in bodies
    ]
    lines.append({**lines[0], "custom_id": "d", "body": {**chat, "temperature": "hot"}})
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert run(frontend, (source, target)) == 4
    answers = {record["id"]: record for record in records(target).values()}
    first, second = answers["a"]["response"]["body"], answers["b"]["response"]["body"]
    assert first["object"] == "chat.completion"
    assert first["usage"]["completion_tokens"] <= 3
    assert [choice["index"] for choice in second["choices"]] == [0, 1]
    assert [answers[name]["error"] for name in "ab"] == [None, None]
    assert "url must be" in answers["c"]["error"]["message"]
    assert "temperature" in answers["d"]["error"]["message"]
    assert [answers[name]["custom_id"] for name in "abcd"] == ["a", "b", "c", "d"]
    with BatchOutput(target) as journal:
        assert journal.num_failed == 2


def openai_batch(folder, bodies):
    """A batch file of chats, one per body, and where its answers go."""
    source = folder / "in.jsonl"
    chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
    fixed = {"method": "POST", "url": "/v1/chat/completions"}
    lines = [
        {"custom_id": f"c{number}", **fixed, "body": {**chat, **body}}
        for number, body in enumerate(bodies)
    ]
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return source, folder / "out.jsonl"


def test_a_body_that_the_server_refuses_gets_its_error_and_ends_no_batch(frontend, tmp_path):
    refused = {"structured_outputs": {"json": {}, "whitespace_pattern": "x"}}
    files = openai_batch(tmp_path, [{}, refused, {}])
    assert run(frontend, files) == 3
    answers = records(files[1])
    assert [answers[number]["error"] is None for number in range(3)] == [True, False, True]
    assert answers[1]["custom_id"] == "c1"
    assert answers[1]["response"] is None
    assert "whitespace_pattern" in answers[1]["error"]["message"]


def test_lines_of_openais_batch_files_have_the_sampling_of_the_flags(frontend, tmp_path):
    source, _ = openai_batch(tmp_path, [{}, {"seed": 7}, {"temperature": 0.5}])
    flags = SamplingParams(temperature=0.25, top_k=4, seed=1, max_tokens=99)
    lines = [OpenAiLine(decode_line(line)) for line in read_lines(source)]
    found = [line.prepare(frontend, flags).params for line in lines]
    sampling = [(each.temperature, each.top_k, each.seed, each.max_tokens) for each in found]
    assert sampling == [(0.25, 4, 1, 3), (0.25, 4, 7, 3), (0.5, 4, 1, 3)]


@pytest.mark.parametrize("name", [7, None, float("nan"), [[]]])
def test_a_custom_id_that_is_no_string_is_refused_in_valid_json(frontend, tmp_path, name):
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    line = {"custom_id": name, "url": "/v1/completions", "body": {"prompt": "the road"}}
    source.write_text(json.dumps(line) + "\n")
    assert run(frontend, (source, target)) == 1
    assert "NaN" not in target.read_text()
    assert "custom_id" in records(target)[0]["error"]["message"]
