"""Prefill and decode servers as processes, driven as routers drive them."""

import json
import random

import pytest
from support.role_servers import BODY, TEXT, assert_clean
from support.router import answers_of


@pytest.mark.slow
def test_vllms_parameters_lead_from_one_server_to_the_other(servers):
    prefill, decode, single, _ = servers
    sampling = {"temperature": 0.7, "seed": 7, "max_tokens": 16}
    greedy = {"model": "tiny", "temperature": 0.0, "max_tokens": 16}
    for path, body in (
        ("/v1/completions", BODY),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": TEXT}], **sampling}),
        ("/v1/messages", {"messages": [{"role": "user", "content": f"message: {TEXT}"}], **greedy}),
        ("/v1/responses", {"input": f"responses: {TEXT}", **sampling}),
        ("/generate", {"text": f"generate: {TEXT}", "sampling_params": sampling}),
    ):
        right = answers_of(single.post(path, body))
        before = decode.invariants["transfers"]["total_done"]
        shared = {"kv_transfer_params": {"do_remote_decode": True}}
        asked = {**body, "max_tokens": 1, "min_tokens": 1, **shared}
        first = prefill.post(path, asked)
        assert first.status_code == 200, first.text
        params = first.json()["kv_transfer_params"]
        answer = decode.post(path, {**body, "kv_transfer_params": params})
        assert answers_of(answer) == right
        assert decode.invariants["transfers"]["total_done"] == before + 1, path
    assert_clean(prefill, decode)


@pytest.mark.slow
def test_a_room_leads_from_one_server_to_the_other(servers):
    prefill, decode, single, port = servers
    body = {**BODY, "prompt": "rooms: " + TEXT}
    right = single.post("/v1/completions", body).json()
    room = {"bootstrap_host": "127.0.0.1", "bootstrap_port": port, "bootstrap_room": 2**62 + 1}
    assert prefill.post("/v1/completions", body | room).status_code == 200
    answer = decode.post("/v1/completions", body | room).json()
    assert answer["choices"] == right["choices"]
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 100
    assert_clean(prefill, decode)


@pytest.mark.slow
def test_a_prefill_server_takes_no_request_that_it_would_have_to_decode(servers):
    prefill, *_ = servers
    refused = prefill.post("/v1/completions", BODY)
    assert refused.status_code == 400
    assert "send requests to the router" in refused.text
    assert prefill.get("/health_generate").status_code == 200
    assert prefill.get("/server_info").json()["disaggregation_mode"] == "prefill"


@pytest.mark.slow
def test_a_server_without_a_role_refuses_to_share_a_request(servers):
    single = servers[2]
    for more in ({"bootstrap_room": 3}, {"kv_transfer_params": {"do_remote_decode": True}}):
        refused = single.post("/v1/completions", BODY | more)
        assert refused.status_code == 400
        assert next(iter(more)) in refused.text


@pytest.mark.slow
def test_a_peer_that_differs_is_named_and_the_prompt_is_computed_here(servers, start):
    prefill, _, single, port = servers
    other = start("decode", "--block-size", "8")
    room = {"bootstrap_host": "127.0.0.1", "bootstrap_port": port, "bootstrap_room": 5}
    body = {**BODY, "prompt": "other pages: " + TEXT}
    assert prefill.post("/v1/completions", body | room).status_code == 200
    answer = other.post("/v1/completions", body | room).json()
    assert answer["choices"] == single.post("/v1/completions", body).json()["choices"]
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert "another page size (8) than the prefill engine (16)" in other.log.read_text()
    assert_clean(other)


@pytest.mark.slow
def test_a_peer_with_another_secret_gets_nothing(servers, start):
    prefill, _, single, port = servers
    other = start("decode", environment={"OUTRIDER_RANKS_KEY": "another"})
    room = {"bootstrap_host": "127.0.0.1", "bootstrap_port": port, "bootstrap_room": 6}
    body = {**BODY, "prompt": "secrets: " + TEXT}
    assert prefill.post("/v1/completions", body | room).status_code == 200
    answer = other.post("/v1/completions", body | room).json()
    assert answer["choices"] == single.post("/v1/completions", body).json()["choices"]
    assert "set OUTRIDER_RANKS_KEY to the same one" in other.log.read_text()
    assert_clean(other)


SHAPES = {
    "logprobs": {"logprobs": 3},
    "prompt logprobs": {"prompt_logprobs": 2},
    "two answers": {"n": 2},
    "penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.4, "top_k": 20},
    "grammar": {"structured_outputs": {"regex": "[a-e]{4,9}"}, "max_tokens": 12},
    "echo": {"echo": True, "logprobs": 1},
    "drafts off": {"speculative": "off"},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
def test_every_kind_of_request_has_the_answer_of_one_server(servers, name):
    prefill, decode, single, port = servers
    body = {**BODY, **SHAPES[name], "prompt": f"{name}: {TEXT}"}
    room = {
        "bootstrap_host": "127.0.0.1",
        "bootstrap_port": port,
        "bootstrap_room": 100 + list(SHAPES).index(name),
    }
    right = single.post("/v1/completions", body).json()
    assert prefill.post("/v1/completions", body | room).status_code == 200
    answer = decode.post("/v1/completions", body | room).json()
    assert answer["choices"] == right["choices"]
    assert_clean(prefill, decode)


@pytest.mark.slow
def test_several_prompts_have_a_room_each(servers):
    prefill, decode, single, port = servers
    body = {**BODY, "prompt": [f"{number}: {TEXT}" for number in ("one", "two", "three")]}
    rooms = {
        "bootstrap_host": ["127.0.0.1"] * 3,
        "bootstrap_port": [port] * 3,
        "bootstrap_room": [201, 202, 203],
    }
    right = single.post("/v1/completions", body).json()
    before = decode.invariants["transfers"]["total_done"]
    assert prefill.post("/v1/completions", body | rooms).status_code == 200
    answer = decode.post("/v1/completions", body | rooms).json()
    assert answer["choices"] == right["choices"]
    assert decode.invariants["transfers"]["total_done"] == before + 3
    assert_clean(prefill, decode)


@pytest.mark.slow
@pytest.mark.parametrize("is_asked_first", [False, True])
def test_a_prompt_of_embeddings_is_computed_where_it_is_decoded(servers, folder, is_asked_first):
    """The prefill server computes one token, and offers nothing."""
    prefill, decode, single, port = servers
    width, rng = json.loads((folder / "config.json").read_text())["hidden_size"], random.Random(3)
    embeds = [[rng.gauss(0, 1) for _ in range(width)] for _ in range(40)]
    body = {"input_embeds": embeds, "sampling_params": {"temperature": 0, "max_new_tokens": 8}}
    shared = {"bootstrap_host": "127.0.0.1", "bootstrap_port": port, "bootstrap_room": 301}
    if is_asked_first:
        shared = {"kv_transfer_params": {"do_remote_decode": True}}
    first = prefill.post("/generate", {**body, **shared})
    assert first.status_code == 200, first.text
    assert first.json()["meta_info"]["prompt_tokens"] == 1
    if is_asked_first:
        shared = {"kv_transfer_params": first.json().get("kv_transfer_params")}
    before = decode.invariants["transfers"]
    answer = decode.post("/generate", {**body, **shared})
    assert answers_of(answer) == answers_of(single.post("/generate", body))
    assert decode.invariants["transfers"] == before
    assert_clean(prefill, decode)
