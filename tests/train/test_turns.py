"""Prompts that the target writes itself, and answers split among processes."""

import json
import shutil
import subprocess
import sys

import pytest

from outrider import LLM
from outrider.cli.main import run
from outrider.errors import ConfigError
from outrider.train.conversations import TrainingConversation, read_conversations
from outrider.train.documents import read_documents
from outrider.train.gather_answers import AnswerPart
from outrider.train.user_turns import SOURCE, TurnSampling, _lines, turn_prefix, write_turns

FLAGS = "--device cpu --rows 4 --turn-tokens 40"
FEW = "--device cpu --temperatures 0 --answer-tokens 4 --length 40 --rows 8"


def prompts_of(path):
    return [json.loads(line)["prompt"] for line in path.read_text().splitlines()]


def test_the_prefix_of_a_user_turn_comes_from_the_chat_template(chat_folder):
    llm = LLM(chat_folder, draft="none", device="cpu", max_model_len=64)
    assert list(turn_prefix(llm.frontend)) == llm.frontend.tokenizer.encode("u", add_special=False)


@pytest.mark.slow
def test_turns_are_complete_and_distinct_and_a_second_run_appends(chat_folder, tmp_path):
    path = tmp_path / "turns.jsonl"
    command = ["train", "prompts", "--model", str(chat_folder), "--out", str(path), *FLAGS.split()]
    assert run([*command, "--count", "12"]) == 0
    first = prompts_of(path)
    assert len(first) == len({" ".join(each.casefold().split()) for each in first}) == 12
    assert all(len(each) >= 8 and "z" not in each for each in first)  # z ends a turn
    assert run([*command, "--count", "20"]) == 0
    assert prompts_of(path)[:12] == first
    assert len(read_conversations(path)) == 20  # it refuses equal ids


def test_a_file_with_other_lines_is_refused_and_not_changed(chat_folder, prompts_file, capsys):
    before = prompts_file.read_bytes()
    command = ["train", "prompts", "--model", str(chat_folder), "--out", str(prompts_file)]
    assert run([*command, *FLAGS.split()]) == 1
    assert "use another --out" in capsys.readouterr().err
    assert prompts_file.read_bytes() == before


NOT_A_TURN = {"id": "other-0-1", "prompt": "a question of mine"}


@pytest.mark.parametrize(
    "line",
    [
        NOT_A_TURN,
        {"id": f"{SOURCE}-0-last", "prompt": "a question of mine"},
        {"id": f"{SOURCE}-0-1", "prompt": ""},
        {"id": f"{SOURCE}-0-1", "prompt": 7},
        {"id": f"{SOURCE}-0-1"},
        [],
    ],
    ids=str,
)
def test_a_line_that_is_not_a_turn_is_refused(line, tmp_path):
    path = tmp_path / "turns.jsonl"
    path.write_text(json.dumps(line) + "\n")
    with pytest.raises(ConfigError, match="use another --out"):
        _lines(path)


def test_a_file_with_other_lines_is_refused_under_python_O(tmp_path):
    path = tmp_path / "turns.jsonl"
    path.write_text(json.dumps(NOT_A_TURN) + "\n")
    code = (
        "from pathlib import Path; from outrider.train.user_turns import _lines; _lines(Path({!r}))"
    )
    command = [sys.executable, "-O", "-c", code.format(str(path))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "ConfigError" in done.stderr
    assert "use another --out" in done.stderr


def test_sampling_stops_at_the_time_limit_when_no_turn_ends(chat_folder, tmp_path, monkeypatch):
    frontend = LLM(chat_folder, draft="none", device="cpu", max_model_len=64).frontend
    sampled, prepare = [], frontend.inputs.prepare

    def count(prompt, params):
        sampled.append(params.seed)
        return prepare(prompt, params)

    monkeypatch.setattr(frontend.inputs, "prepare", count)
    sampling = TurnSampling(count=5, temperature=1.0, max_tokens=1, seed=0, limit_s=0.0)
    path = tmp_path / "turns.jsonl"
    found = write_turns(frontend, sampling, path, max_in_flight=2, on_turn=lambda _: None)
    assert found == 0
    assert len(sampled) <= 4  # the first two, and at most two that took their places


def test_a_model_without_chat_template_is_refused_before_a_file_is_made(
    target_folder, tmp_path, capsys
):
    path = tmp_path / "turns.jsonl"
    command = ["train", "prompts", "--model", str(target_folder), "--out", str(path)]
    assert run([*command, "--device", "cpu"]) == 1
    assert "no chat template" in capsys.readouterr().err
    assert not path.exists()


def test_a_template_that_drops_the_user_turn_is_refused(chat_folder, tmp_path):
    folder = shutil.copytree(chat_folder, tmp_path / "mute")
    config = {"eos_token": "z", "chat_template": "fixed"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    llm = LLM(folder, draft="none", device="cpu", max_model_len=64)
    with pytest.raises(ConfigError, match="does not repeat what the user says"):
        turn_prefix(llm.frontend)


def test_parts_divide_the_conversations_without_overlap(target_folder, prompts_file, tmp_path):
    whole = {each.id for each in read_conversations(prompts_file)}
    found = []
    for number in (1, 2, 3):
        path = tmp_path / f"{number}.jsonl"
        command = ["train", "answers", "--model", str(target_folder), "--prompts"]
        command += [str(prompts_file), "--out", str(path), "--part", f"{number}/3"]
        assert run([*command, *FEW.split()]) == 0
        found.append({each.id for each in read_documents(path)})
    assert set.union(*found) == whole
    assert sum(map(len, found)) == len(whole)


@pytest.mark.parametrize("part", ["0/3", "4/3", "3", "a/b", "-1/2"])
def test_an_invalid_part_is_refused(part, target_folder, prompts_file, tmp_path, capsys):
    command = ["train", "answers", "--model", str(target_folder), "--out", str(tmp_path / "a")]
    assert run([*command, "--prompts", str(prompts_file), "--part", part]) == 1
    assert "such as 2/3" in capsys.readouterr().err


def test_the_part_of_a_conversation_depends_on_its_id_only():
    conversations = [
        TrainingConversation(id=str(name), source="", system="", turns=("x",), tokens=())
        for name in range(40)
    ]
    forward = {each.id for each in AnswerPart(number=2, of=3).share(conversations)}
    backward = {each.id for each in AnswerPart(number=2, of=3).share(conversations[::-1])}
    assert forward == backward
