"""A model whose weights hold NaN: the requests that read them fail, the others are answered."""

import json
import math
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.served import ServerProcess
from support.spoken import PIECES, tiny_llama, write_tokenizer

from outrider import LLM, SamplingParams
from outrider.cli.main import run

BAD = "!"
ASKED = {"model": "tiny", "max_tokens": 6, "temperature": 0.0}
TURNS = [{"role": "user", "content": f"the {BAD}"}]
BODIES = [
    ("/v1/chat/completions", {"messages": TURNS, "max_tokens": 2}),
    ("/v1/completions", {"prompt": f"the {BAD}", "max_tokens": 2}),
    ("/v1/responses", {"input": f"the {BAD}", "max_output_tokens": 2}),
    ("/v1/messages", {"messages": TURNS, "max_tokens": 2, "model": "tiny"}),
    ("/api/chat", {"messages": TURNS, "model": "tiny"}),
    ("/api/generate", {"prompt": f"the {BAD}", "model": "tiny"}),
    ("/generate", {"text": f"the {BAD}", "sampling_params": {"max_new_tokens": 2}}),
]


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


def test_a_line_of_a_batch_that_fails_each_time_has_its_error_and_is_done(
    bad_folder: Path, tmp_path: Path
) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    openai_lines = [
        {"custom_id": name, "url": "/v1/completions", "body": {"prompt": text, "max_tokens": 2}}
        for name, text in {"bad": f"the {BAD}", "good": "the rider"}.items()
    ]
    lines = [*openai_lines, {"id": "own", "prompt": BAD}]
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    flags = ["generate", "--model", str(bad_folder), "--device", "cpu", "--draft", "none"]
    for _ in range(2):  # the second run has nothing to do
        assert run([*flags, "--input", str(source), "--output", str(target)]) == 1
        answers = {line["id"]: line for line in map(json.loads, target.read_text().splitlines())}
        assert len(answers) == len(target.read_text().splitlines()) == 3
    bad, good, own = (answers[name] for name in ("bad", "good", "own"))
    assert (bad["response"], bad["error"]["code"]) == (None, "not_finite")
    assert bad["error"]["message"] == own["error"]
    assert (good["response"]["status_code"], good["error"]) == (200, None)


def test_a_value_that_overflows_though_its_key_does_not_ends_its_request(tmp_path: Path) -> None:
    tiny_llama().save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    embedding = weights["model.embed_tokens.weight"]
    embedding[:, 0] = 0.0  # the first channel is the bad token's alone
    embedding[PIECES.index(BAD)] = torch.eye(embedding.shape[1])[0]
    weights["model.layers.0.self_attn.v_proj.weight"][5, 0] = torch.finfo(torch.float32).max
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    llm = LLM(tmp_path, device="cpu", dtype="float32", draft="none")
    params = SamplingParams(temperature=0.0, max_tokens=4)
    prompts = ["the rider", f"the {BAD} rider", f"the rider {BAD}", "the rider"]
    good, *bad, again = llm.generate(prompts, params)
    assert all("not finite" in each.error and not each.outputs[0].token_ids for each in bad)
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
    assert bad.status_code == 500
    assert "not finite" in bad.json()["error"]["message"]
    events = [
        line.removeprefix("data: ")
        for line in answer(f"the {BAD}", stream=True).text.splitlines()
        if line
    ]
    assert events[-1] == "[DONE]"
    assert json.loads(events[-2]) == bad.json()
    assert answer("the rider").json()["choices"][0]["text"] == right
    assert bad_server.wait_until_idle()["is_idle"]


@pytest.mark.slow
@pytest.mark.parametrize(("path", "body"), BODIES)
def test_every_api_answers_500_without_a_time_to_try_again(
    bad_server: ServerProcess, path: str, body: dict[str, object]
) -> None:
    whole = bad_server.post(path, {"stream": False, **body})
    assert (whole.status_code, whole.json()["error"]["code"]) == (500, "not_finite")
    assert "retry-after" not in whole.headers
    assert whole.headers["x-should-retry"] == "false"
    message = whole.json()["error"]["message"]
    lines = bad_server.post(path, {"stream": True, **body}).text.splitlines()
    *_, last = (line for line in lines if "{" in line)
    event = json.loads(last.removeprefix("data: "))
    error = event["response"]["error"] if "response" in event else event["error"]
    assert (error if isinstance(error, str) else error["message"]) == message


@pytest.mark.slow
def test_clients_do_not_send_a_request_again_that_will_fail_again(
    bad_server: ServerProcess,
) -> None:
    client = openai.OpenAI(base_url=f"{bad_server.url}/v1", api_key="none", max_retries=2)
    before = num_answered(bad_server)
    with pytest.raises(openai.InternalServerError) as caught:
        client.completions.create(**ASKED, prompt=f"the {BAD}")
    assert caught.value.code == "not_finite"
    assert "Retry-After" not in caught.value.response.headers
    assert num_answered(bad_server) == before + 1


def num_answered(server: ServerProcess) -> float:
    """Requests that have ended, well or not."""
    line = "outrider:request_success_total{"
    lines = [each for each in server.get("/metrics").text.splitlines() if line in each]
    return sum(float(each.rpartition(" ")[2]) for each in lines)
