"""Perplexity through the serving decoder, against transformers' own logits."""

import json
import math

import pytest
import torch
from support.tiny import tiny_model

from outrider.bench.perplexity import encode_texts, measure_perplexity
from outrider.cli.main import run

TEXTS = ["the quick brown fox", "b", "jumps over the lazy dog and runs on"]


@pytest.fixture
def text_file(tmp_path):
    path = tmp_path / "texts.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": text}) for text in TEXTS) + "\n\n")
    return path


def expected_perplexity(encoded):
    model, total, num_tokens = tiny_model("llama"), 0.0, 0
    for tokens in encoded:
        ids = torch.tensor([tokens])
        with torch.inference_mode():
            laws = model(ids).logits[0, :-1].log_softmax(-1)
        total -= float(laws.gather(1, ids[0, 1:, None]).sum())
        num_tokens += len(tokens) - 1
    return math.exp(total / num_tokens)


def test_perplexity_is_that_of_an_independent_forward_pass(tiny_folder):
    encoded = encode_texts(tiny_folder, TEXTS)
    noted = []
    found = measure_perplexity(tiny_folder, "float32", encoded, noted.append)
    assert found.perplexity == pytest.approx(expected_perplexity(encoded), rel=1e-4)
    assert found.num_tokens == sum(map(len, encoded)) - 2  # the one-letter text predicts nothing
    assert noted == ["perplexity float32"] * 2


@pytest.mark.slow
def test_the_command_prints_and_writes_the_change_against_the_first(
    tiny_folder, text_file, tmp_path, capsys
):
    target = tmp_path / "result.json"
    flags = ["--model", str(tiny_folder), "--prompts", str(text_file), "--json", str(target)]
    assert run(["bench", "perplexity", *flags, "--threads", "1"]) == 0
    written = json.loads(target.read_text())
    float32, int8 = written["results"]
    assert (float32["dtype"], int8["dtype"]) == ("float32", "int8")
    assert float32["change"] == 0.0
    assert int8["change"] == pytest.approx(int8["perplexity"] / float32["perplexity"] - 1)
    assert written["num_texts"] == 2
    shown = capsys.readouterr().out
    assert f"{float32['perplexity']:.4f}" in shown
    assert f"{int8['change']:+.3%}" in shown


def test_limit_takes_the_first_texts(tiny_folder, text_file, capsys):
    flags = ["--model", str(tiny_folder), "--prompts", str(text_file), "--dtype", "float32"]
    assert run(["bench", "perplexity", *flags, "--limit", "1"]) == 0
    num_tokens = len(encode_texts(tiny_folder, TEXTS[:1])[0]) - 1
    assert f"1 texts, {num_tokens} tokens" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "no prompts"),
        ("{", "line 1 is not JSON"),
        ('"ab"\n{"text": 1}', "line 2 has no prompt"),
    ],
)
def test_a_file_without_texts_is_refused_with_one_line(content, reason, tmp_path, capsys):
    path = tmp_path / "texts.jsonl"
    path.write_text(content)
    assert run(["bench", "perplexity", "--prompts", str(path)]) == 1
    shown = capsys.readouterr().err
    assert reason in shown
    assert shown.count("\n") == 1


def test_a_missing_file_or_flag_is_named(tmp_path, capsys):
    assert run(["bench", "perplexity", "--prompts", str(tmp_path / "none.jsonl")]) == 1
    assert "check --prompts" in capsys.readouterr().err
    assert run(["bench", "perplexity"]) == 2
    assert "--prompts" in capsys.readouterr().err
