"""Answers that the engine could not finish: the error of each, and the other answers."""

import io
import json
import sys

import pytest
from support.faults import Fault, break_steps

from outrider import LLM, SamplingParams
from outrider.cli.main import run
from outrider.frontend.request_state import OutputState, StopRules, text_stream
from outrider.models.decoder import Decoder
from outrider.step.device_stream import HostEvent
from outrider.wire.failure import FailureKind, RequestFailure
from outrider.wire.submission import Progress, RequestUpdate

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
PROMPTS = ["the rider", "goes", "ahead of", "the road"]
REASON = "a step failed with Fault: the step broke on the device; try again"


@pytest.fixture
def on_model(model_folder):
    return ["--model", str(model_folder), "--ignore-eos", "--max-tokens", "8", "--seed", "5"]


@pytest.fixture
def break_target(monkeypatch):
    """Lets forwards of every model fail, counted from 1."""

    def arrange(*numbers):
        forward, seen = Decoder.forward, iter(range(1, 10**9))

        def run_some(model, *args):
            if next(seen) in numbers:
                raise Fault("the step broke on the device")
            return forward(model, *args)

        monkeypatch.setattr(Decoder, "forward", run_some)

    return arrange


@pytest.mark.parametrize("depth", [0, 1])
def test_generate_returns_the_error_of_one_prompt_and_the_answers_to_the_others(
    model_folder, depth
):
    llm = LLM(model_folder, max_num_seqs=1, depth=depth)
    right = llm.generate(PROMPTS, GREEDY)
    break_steps(llm.frontend._engine, at_wait={13})  # the second prompt's; each takes eight
    outputs = llm.generate(PROMPTS, GREEDY)
    bad, good = outputs.pop(1), right.pop(1)
    assert (bad.finished, bad.error) == (True, REASON)
    (completion,) = bad.outputs
    assert (completion.finish_reason, completion.stop_reason) == ("error", REASON)
    assert completion.token_ids == good.outputs[0].token_ids[: len(completion.token_ids)]
    assert 0 < len(completion.token_ids) < 8
    assert [each.outputs[0].token_ids for each in outputs] == [
        each.outputs[0].token_ids for each in right
    ]
    assert {each.error for each in outputs} == {""}
    assert llm.frontend.is_idle


def test_a_stream_says_that_it_ended_by_an_error(model_folder):
    llm = LLM(model_folder)
    break_steps(llm.frontend._engine, at_submit={4})
    stream = llm.stream("the rider", GREEDY)
    assert [delta.finish_reason for delta in stream] == [None, None, None, "error"]
    assert "broke while it was submitted" in stream.output.error


def test_a_failed_answer_keeps_its_text_also_what_was_held_back(tokenizer):
    params = SamplingParams(stop="stop")
    rules = StopRules(named=frozenset(), is_shown=False)
    output = OutputState(text_stream(params, (5,), tokenizer), rules)
    progress = Progress(cached=0, rounds=1, drafted=0, accepted_per_depth=(), preemptions=0)
    tokens = tuple(tokenizer.encode("go sto", add_special=False))
    said = {"request_id": "0", "logprobs": (), "progress": progress}
    output.push(RequestUpdate(tokens=tokens, finish="running", **said))
    failure = RequestFailure(FailureKind.TEMPORARY, "a step failed")
    output.push(RequestUpdate(tokens=(), finish="error", failure=failure, **said))
    assert output.text == "go sto"
    assert (output.ending.finish, output.ending.failure) == ("error", failure)


@pytest.mark.parametrize("flags", [[], ["--n", "2"]])
def test_generate_prints_what_there_is_then_the_error_and_exits_with_1(
    on_model, break_target, capsys, flags
):
    break_target(4)
    assert run(["generate", "the rider", "--raw", *flags, *on_model]) == 1
    shown = capsys.readouterr()
    assert shown.err.splitlines()[-1] == f"error: {REASON}"
    assert "Traceback" not in shown.out
    assert "ended by error" in shown.err


def test_the_json_of_a_failed_answer_names_the_error_and_the_exit_code_is_1(
    on_model, break_target, capsys
):
    break_target(4)
    assert run(["generate", "the rider", "--raw", "--json", *on_model]) == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["finish_reason"], report["stop_reason"], report["error"]) == (
        "error",
        REASON,
        REASON,
    )
    assert len(report["token_ids"]) == 3


def test_a_line_struck_by_a_failure_is_left_to_the_next_run_of_its_batch(
    on_model, break_target, tmp_path, capsys
):
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    sizes = zip(PROMPTS, (8, 2, 2, 3), strict=True)
    lines = [{"prompt": text, "max_tokens": size} for text, size in sizes]
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = ["generate", "--input", str(source), "--output", str(target), *on_model]
    break_target(5)  # only the first line takes that many steps
    assert run(command) == 1
    assert f"1 left to the next run ({REASON})" in capsys.readouterr().err
    assert run(command) == 0
    records = {each["line"]: each for each in map(json.loads, target.read_text().splitlines())}
    assert [len(records[line]["token_ids"]) for line in range(4)] == [8, 2, 2, 3]


def test_a_batch_on_a_lost_device_ends_and_says_what_to_do(on_model, tmp_path, monkeypatch, capsys):
    def lose(mark):
        raise RuntimeError("CUDA error: unspecified launch failure")

    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(f"{json.dumps(f'the road {i}')}\n" for i in range(300)))
    monkeypatch.setattr(HostEvent, "wait", lose)
    assert run(["generate", "--input", str(source), "--output", str(target), *on_model]) == 1
    summary = capsys.readouterr().err.splitlines()[-1]
    assert "300 left to the next run" in summary
    assert "restart the process" in summary


def test_a_chat_shows_the_error_and_forgets_the_question(
    on_model, break_target, monkeypatch, capsys
):
    break_target(3)
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello\nagain\n/reset\nagain\n"))
    assert run(["chat", *on_model]) == 0
    shown = capsys.readouterr()
    assert f"error: {REASON}" in shown.err
    _, after_the_error, after_the_reset = shown.out.splitlines()
    assert after_the_error == after_the_reset
