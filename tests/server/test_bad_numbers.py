"""A model whose weights hold NaN: the requests that read them fail, the others are answered."""

import json
import math
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from safetensors.torch import load_file, save_file
from support.served import ServerProcess
from support.spoken import PIECES, tiny_llama, write_tokenizer

from outrider import LLM, SamplingParams

BAD = "!"
ASKED = {"model": "tiny", "max_tokens": 6, "temperature": 0.0}


@pytest.fixture(scope="module")
def bad_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bad")
    tiny_llama().save_pretrained(folder)
    write_tokenizer(folder)
    weights = load_file(folder / "model.safetensors")
    weights["model.embed_tokens.weight"][PIECES.index(BAD)] = math.nan
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_generate_returns_the_error_of_the_bad_prompt_alone(bad_folder: Path) -> None:
    llm = LLM(bad_folder, device="cpu")
    params = SamplingParams(temperature=0.0, max_tokens=4)
    good, bad, again = llm.generate(["the rider", f"the {BAD}", "the rider"], params)
    assert "not finite" in bad.error
    assert bad.outputs[0].token_ids == []
    assert not good.error
    assert good.outputs[0].token_ids == again.outputs[0].token_ids


@pytest.fixture(scope="module")
def bad_server(
    bad_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    log = tmp_path_factory.mktemp("bad_log") / "stderr"
    running = ServerProcess(bad_folder, log, "--served-model-name", "tiny", "--draft", "ngram")
    yield running
    assert running.stop() == 0


@pytest.mark.slow
def test_the_server_answers_an_error_for_the_bad_prompt_alone(bad_server: ServerProcess) -> None:
    def answer(prompt: str, **more: object) -> httpx.Response:
        return bad_server.post("/v1/completions", {**ASKED, "prompt": prompt, **more})

    right = answer("the rider").json()["choices"][0]["text"]
    bad = answer(f"the {BAD}")
    assert bad.status_code == 503
    assert "not finite" in bad.json()["error"]["message"]
    events = [
        line.removeprefix("data: ")
        for line in answer(f"the {BAD}", stream=True).text.splitlines()
        if line
    ]
    assert events[-1] == "[DONE]"
    assert "not finite" in json.loads(events[-2])["error"]["message"]
    assert answer("the rider").json()["choices"][0]["text"] == right
    assert bad_server.wait_until_idle()["is_idle"]
