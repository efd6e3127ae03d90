"""Adapters over HTTP: model names, `lora_path`, loading and unloading while others stream."""

import json
import threading

import httpx
import pytest
from support.lora import save_adapter
from support.served import LONG_S
from support.spoken import tiny_llama

from outrider import LLM, LoRARequest, OutriderError, SamplingParams
from tests.server.conftest import CONTEXT, NAME

PROMPT = "the tale of a quick brown fox"
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("adapters")
    for seed, name in enumerate(["first", "second", "third"]):
        save_adapter(tiny_llama(CONTEXT), root / name, seed=seed)
    (root / "broken").mkdir()
    (root / "broken" / "adapter_config.json").write_text("{")
    (root / "broken" / "adapter_model.safetensors").write_bytes(b"no tensors")
    return root


@pytest.fixture(scope="module")
def adapted_server(start_server, folders):
    flags = ["--draft", "ngram", "--no-adaptive", "--kv-tokens", "16384", "--enable-lora"]
    modules = [f"{name}={folders / name}" for name in ("first", "second")]
    server = start_server(*flags, "--max-loras", "2", "--lora-modules", *modules)
    yield server
    assert server.stop() == 0


@pytest.fixture(scope="module")
def right(served_folder, folders):
    """The text after the prompt for every adapter, offline and without drafts."""
    llm = LLM(served_folder, draft="none", device="cpu", enable_lora=True, max_loras=1)
    texts = {}
    for number, name in enumerate(["", "first", "second", "third"]):
        lora = LoRARequest(name, number, str(folders / name)) if name else None
        (output,) = llm.generate(PROMPT, GREEDY, use_tqdm=False, lora_request=lora)
        texts[name] = output.outputs[0].text
    assert len(set(texts.values())) == 4
    return texts


def complete(server, **fields):
    body = {"prompt": PROMPT, "temperature": 0, "max_tokens": 12, "ignore_eos": True, **fields}
    return server.post("/v1/completions", body)


def text_of(server, **fields):
    response = complete(server, **fields)
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]["text"]


def load(server, name, path, **more):
    return server.post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(path), **more})


def unload(server, name):
    return server.post("/v1/unload_lora_adapter", {"lora_name": name})


@pytest.mark.slow
def test_adapters_are_chosen_by_model_names_and_by_lora_path(adapted_server, right):
    assert text_of(adapted_server) == right[""]
    assert text_of(adapted_server, model="first") == right["first"]
    assert text_of(adapted_server, model=f"{NAME}:second") == right["second"]
    assert text_of(adapted_server, lora_path="second") == right["second"]
    assert complete(adapted_server, model="first").json()["model"] == "first"
    vectors = [
        adapted_server.post("/v1/embeddings", {"input": PROMPT, "model": name}).json()["data"]
        for name in (NAME, "first", "second")
    ]
    assert vectors[0] != vectors[1] != vectors[2] != vectors[0]
    cards = adapted_server.get("/v1/models").json()["data"]
    assert [(card["id"], card["parent"]) for card in cards] == [
        (NAME, None),
        ("first", NAME),
        ("second", NAME),
    ]


@pytest.mark.slow
def test_prompts_of_one_call_may_have_different_adapters(adapted_server, right):
    body = {
        "text": [PROMPT] * 3,
        "lora_path": ["first", None, "second"],
        "sampling_params": {"temperature": 0, "max_new_tokens": 12, "ignore_eos": True},
    }
    answers = adapted_server.post("/generate", body).json()
    assert [each["text"] for each in answers] == [right["first"], right[""], right["second"]]


@pytest.mark.slow
def test_an_adapter_comes_and_goes_while_others_stream(adapted_server, right, folders):
    streamed = []

    def stream():
        body = {"prompt": PROMPT, "max_tokens": 400, "temperature": 0, "ignore_eos": True}
        url = f"{adapted_server.url}/v1/completions"
        with httpx.stream(
            "POST", url, json={**body, "stream": True, "model": "first"}, timeout=LONG_S
        ) as response:
            lines = [line for line in response.iter_lines() if line.startswith("data: {")]
            streamed.extend(json.loads(line[6:])["choices"][0]["text"] for line in lines)

    reader = threading.Thread(target=stream)
    reader.start()
    assert load(adapted_server, "third", folders / "third").status_code == 200
    assert text_of(adapted_server, model="third") == right["third"]
    assert unload(adapted_server, "third").status_code == 200
    assert complete(adapted_server, model="third").status_code == 404
    reader.join(LONG_S)
    assert "".join(streamed).startswith(right["first"])
    assert text_of(adapted_server, model="second") == right["second"]


@pytest.mark.slow
def test_adapters_that_cannot_be_used_are_refused_and_the_server_goes_on(
    adapted_server, right, folders
):
    for name, path, reason in (
        ("lost", folders / "none", "there is no adapter"),
        ("bad", folders / "broken", "is damaged"),
        ("first", folders / "third", "is loaded already"),
        (NAME, folders / "third", "is the name of the model"),
        ("", folders / "third", "1 to 256 characters"),
    ):
        response = load(adapted_server, name, path)
        assert response.status_code == 400, name
        assert reason in response.json()["error"]["message"]
    assert unload(adapted_server, "lost").status_code == 404
    missing = complete(adapted_server, lora_path="lost")
    assert (missing.status_code, missing.json()["error"]["param"]) == (404, "lora_path")
    assert text_of(adapted_server) == right[""]


@pytest.mark.slow
def test_a_name_can_get_another_adapter(adapted_server, right, folders):
    assert load(adapted_server, "changing", folders / "first").status_code == 200
    assert text_of(adapted_server, model="changing") == right["first"]
    replaced = load(adapted_server, "changing", folders / "third", load_inplace=True)
    assert replaced.status_code == 200
    assert text_of(adapted_server, model="changing") == right["third"]
    assert unload(adapted_server, "changing").status_code == 200


@pytest.mark.slow
def test_a_server_without_adapters_refuses_them(server, folders):
    response = load(server, "first", folders / "first")
    assert response.status_code == 400
    assert "--enable-lora" in response.json()["error"]["message"]
    assert complete(server, model="first").status_code == 404


@pytest.mark.slow
def test_a_server_does_not_start_with_an_adapter_that_cannot_be_used(start_server, folders):
    with pytest.raises(AssertionError, match=r"--lora-modules bad: .*is damaged"):
        start_server("--enable-lora", "--lora-modules", f"bad={folders / 'broken'}")


def test_llm_without_adapters_names_the_fix(llm, folders):
    with pytest.raises(OutriderError, match="enable_lora=True"):
        llm.generate(PROMPT, lora_request=LoRARequest("first", 1, str(folders / "first")))
