"""Routers from the package index, unchanged: before whole servers, and before roles apart."""

import base64
import contextlib
import json

import pytest
import torch
from safetensors.torch import save
from support.role_servers import BODY, TEXT, assert_clean
from support.router import (
    ROUTERS,
    RouterProcess,
    answers_of,
    apart,
    prompt_length,
    text_of,
    whole_text,
)

SAMPLING = {"temperature": 0.7, "seed": 7, "max_tokens": 16}
NATIVE = {"temperature": 0.0, "max_new_tokens": 16}  # vllm-router drops seeds here
REFUSED = {  # by the router: 501, 404
    ("sglang-router", "responses"),
    ("sglang-router", "message"),
}


def bodies(name):
    """Requests whose prompts no other test has sent: by kind, the route, body and prompts."""

    def new(kind):
        return f"{name}, {kind}: {TEXT}"

    def chat(kind):
        return {"model": "tiny", **SAMPLING, "messages": [{"role": "user", "content": new(kind)}]}

    native = {"sampling_params": NATIVE, "return_logprob": True}
    listed = {"prompt": [new("first"), new("second")], "logprobs": 2}
    message = {"model": "tiny", "max_tokens": 16, "temperature": 0.0}
    message["messages"] = [{"role": "user", "content": new("message")}]
    responses = {"model": "tiny", "input": new("response"), "max_output_tokens": 16}
    found = {
        "completion": ("/v1/completions", {**BODY, "prompt": new("completion")}, 1),
        "two completions": ("/v1/completions", {**BODY, **listed}, 2),
        "chat": ("/v1/chat/completions", chat("chat"), 1),
        "logprobs": ("/v1/chat/completions", chat("l") | {"logprobs": True, "top_logprobs": 2}, 1),
        "generate": ("/generate", {"text": new("generate"), **native}, 1),
        "message": ("/v1/messages", message, 1),
        "responses": ("/v1/responses", responses | {"temperature": 0.0}, 1),
    }
    return {kind: each for kind, each in found.items() if (name, kind) not in REFUSED}


def assert_same_answers(router, single, path, body):
    """Whole and streamed answers are those of a server without a router."""
    alone = single.post(path, body)
    right = answers_of(alone)
    answer = router.post(path, body)
    assert answer.status_code == 200, answer.text
    assert answers_of(answer) == right
    assert prompt_length(answer) == prompt_length(alone)
    streamed = router.post(path, {**body, "stream": True})
    assert streamed.status_code == 200, streamed.text
    assert whole_text(streamed) == text_of(right)


@pytest.mark.slow
@pytest.mark.parametrize("name", ROUTERS)
def test_roles_apart_answer_as_one_server(servers, tmp_path, name):
    prefill, decode, single, port = servers
    flags = apart(name, prefill, port, decode)
    with contextlib.closing(RouterProcess(name, tmp_path / "log", *flags)) as router:
        for kind, (path, body, num_prompts) in bodies(name).items():
            before = decode.invariants["transfers"]
            assert_same_answers(router, single, path, body)
            after = decode.invariants["transfers"]
            assert after["total_done"] == before["total_done"] + num_prompts, kind
            assert after["total_failed"] == before["total_failed"], kind
    assert_clean(prefill, decode)


@pytest.mark.slow
def test_prompts_that_do_not_travel_are_counted_where_they_are_read(servers, folder, tmp_path):
    """vllm-router tells the counts of the prefill server, which has not read these prompts."""
    prefill, decode, single, port = servers
    width = json.loads((folder / "config.json").read_text())["hidden_size"]
    embeds = torch.randn(40, width, generator=torch.Generator().manual_seed(3))
    encoded = base64.b64encode(save({"x": embeds})).decode()
    body = {**BODY, "prompt": f"beside embeddings: {TEXT}", "prompt_embeds": encoded}
    before = decode.invariants["transfers"]["total_done"]
    flags = apart("vllm-router", prefill, port, decode)
    with contextlib.closing(RouterProcess("vllm-router", tmp_path / "log", *flags)) as router:
        assert_same_answers(router, single, "/v1/completions", body)
    assert decode.invariants["transfers"]["total_done"] == before + 1
    assert_clean(prefill, decode)


@pytest.mark.slow
@pytest.mark.parametrize("name", ROUTERS)
def test_a_whole_server_answers_as_without_a_router(servers, tmp_path, name):
    single = servers[2]
    flags = ("--worker-urls", single.url, "--policy", "round_robin")
    with contextlib.closing(RouterProcess(name, tmp_path / "log", *flags)) as router:
        for kind, (path, body, _) in bodies(f"plain {name}").items():
            if (name, kind) not in REFUSED:
                assert_same_answers(router, single, path, body)
    assert_clean(single)
