"""The commands over a tiny real model."""

import io
import json
import signal
import subprocess
import sys

import pytest
import torch
from support.lora import save_adapter
from transformers import AutoModelForCausalLM

from outrider import LLM, LoRARequest, SamplingParams
from outrider.cli.main import run


@pytest.fixture(scope="module")
def on_model(model_folder):
    return ["--model", str(model_folder), "--ignore-eos", "--max-tokens", "8", "--seed", "5"]


@pytest.fixture(scope="module")
def llm(model_folder):
    return LLM(model_folder)


def expected(llm, prompt):
    params = SamplingParams(seed=5, max_tokens=8, ignore_eos=True)
    (output,) = llm.generate(prompt, params, use_tqdm=False)
    return output.outputs[0]


def test_generate_answers_through_an_adapter(model_folder, on_model, tmp_path, capsys):
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    save_adapter(model, tmp_path)
    assert run(["generate", "the rider", "--raw", "--lora", str(tmp_path), *on_model]) == 0
    adapted = LLM(model_folder, enable_lora=True)
    params = SamplingParams(seed=5, max_tokens=8, ignore_eos=True)
    lora = LoRARequest("a", 1, str(tmp_path))
    outputs = adapted.generate(["the rider"] * 2, params, use_tqdm=False, lora_request=[lora, None])
    texts = [output.outputs[0].text for output in outputs]
    assert capsys.readouterr().out == texts[0] + "\n"
    assert texts[0] != texts[1]
    assert run(["generate", "a", "--lora", str(tmp_path / "none"), *on_model]) == 1
    assert "there is no adapter in" in capsys.readouterr().err


def test_generate_prints_the_answer_and_closes_with_its_speed(llm, on_model, capsys):
    assert run(["generate", "the rider", "--raw", *on_model]) == 0
    shown = capsys.readouterr()
    assert shown.out == expected(llm, "the rider").text + "\n"
    closing = shown.err.splitlines()[-1]
    assert "8 tokens, " in closing
    assert "tokens/s" in closing
    assert "seed 5" in closing


def test_json_is_one_object_and_nothing_else(llm, on_model, capsys):
    assert run(["generate", "the rider", "--raw", "--json", *on_model]) == 0
    report = json.loads(capsys.readouterr().out)
    answer = expected(llm, "the rider")
    assert (report["text"], report["token_ids"]) == (answer.text, answer.token_ids)
    assert (report["seed"], report["finish_reason"]) == (5, "length")
    assert report["prompt_tokens"] == 7
    assert report["tokens_per_s"] > 0
    assert report["acceptance"]["drafted"] == 0
    assert (report["acceptance"]["accept_rate"], report["acceptance"]["accept_length"]) == (0, 1)


def test_several_answers_are_all_reported(on_model, capsys):
    assert run(["generate", "the rider", "--n", "2", "--json", "--logprobs", "1", *on_model]) == 0
    report = json.loads(capsys.readouterr().out)
    assert len(report["outputs"]) == 2
    assert report["outputs"][0]["text"] == report["text"]
    assert len(report["logprobs"]) == 8
    assert run(["generate", "the rider", "--n", "2", *on_model]) == 0
    assert "[1, seed " in capsys.readouterr().out


def test_without_raw_the_prompt_goes_through_the_chat_template(llm, on_model, capsys):
    assert run(["generate", "hello", "--system", "be kind", *on_model]) == 0
    rendered = llm.frontend.inputs.render(
        [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hello"}]
    )
    assert capsys.readouterr().out == expected(llm, rendered).text + "\n"


def test_a_batch_file_is_answered_and_resumed(on_model, tmp_path, capsys):
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text('"one"\n{"id": "x", "prompt": ""}\n{"prompt_token_ids": [5, 6]}\n')
    command = ["generate", "--input", str(source), "--output", str(target), *on_model]
    assert run(command) == 1  # a line has failed
    whole = target.read_bytes()
    target.write_bytes(whole[:-10])
    assert run(command) == 1
    records = [json.loads(line) for line in target.read_text().splitlines()]
    assert sorted(record["line"] for record in records) == [0, 1, 2]
    assert [record["id"] for record in records if "error" in record] == ["x"]
    capsys.readouterr()
    assert run(command) == 1  # the old failure still counts
    assert "3 lines" in (summary := capsys.readouterr().err)
    assert "3 from before, 1 failed" in summary


def test_a_folder_without_tokenizer_says_what_to_do(ids_only_folder, capsys):
    assert run(["generate", "hello", "--model", str(ids_only_folder)]) == 1
    assert "prompt_token_ids" in capsys.readouterr().err.splitlines()[-1]


def test_chat_answers_obeys_its_commands_and_leaves(on_model, monkeypatch, capsys):
    lines = ["hello", "", "/help", "again", "/reset", "hello", "a" * 300, "/exit", "not read"]
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(lines)))
    assert run(["chat", *on_model]) == 0
    shown = capsys.readouterr()
    answers = shown.out.splitlines()
    assert len(answers) >= 3
    assert answers[0] == answers[-1]  # after /reset the seeded answer is the same again
    assert "empty again" in shown.err
    assert "shorten it" in shown.err


@pytest.mark.slow
def test_an_interrupt_at_the_prompt_does_not_end_a_chat(on_model):
    chat = subprocess.Popen(
        [sys.executable, "-c", "from outrider.cli.main import main; main()", "chat", *on_model],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with chat:
        assert "Ctrl-C" in chat.stderr.readline()  # the model is loaded
        chat.send_signal(signal.SIGINT)
        assert chat.stderr.readline() == "\n"
        out, err = chat.communicate("hello\n", timeout=60)
    assert chat.returncode == 0, err
    assert out
