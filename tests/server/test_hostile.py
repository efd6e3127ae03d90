"""Requests made to cost more than they may: none of them delays others."""

import contextlib
import subprocess
import threading
import time

import httpx
import pytest
from support.served import wait_for

SHORT = {"prompt": "the", "max_tokens": 2, "seed": 1, "model": "tiny"}
ALTERNATIVES = "|".join(f"a{{1,{n}}}b{{1,{n}}}" for n in range(200, 260))
BOMBS = {
    "a regex that counts": {"regex": "((a{1,500}){1,500}){1,500}"},
    "a regex of many ways": {"regex": f"({ALTERNATIVES})" * 20},
    "a schema that counts": {"json": {"type": "string", "minLength": 10**6, "maxLength": 10**7}},
    "a schema that doubles": {
        "json": {
            "$defs": {
                f"d{n}": {
                    "type": "object",
                    "properties": {
                        key: {"$ref": f"#/$defs/d{n + 1}"} if n < 30 else {"type": "null"}
                        for key in "ab"
                    },
                }
                for n in range(31)
            },
            "$ref": "#/$defs/d0",
        }
    },
    "a grammar without end": {"grammar": "root ::= root root | root"},
}


def counter(server, name):
    lines = server.get("/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(f"outrider:{name}{{"))


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.slow
def test_a_bomb_among_grammars_is_over_in_time_and_delays_no_other(server, name):
    pytest.importorskip("xgrammar")
    answers = []

    def throw():
        body = {**SHORT, "max_tokens": 8, "structured_outputs": BOMBS[name]}
        answers.append(httpx.post(f"{server.url}/v1/completions", json=body, timeout=90))

    throwing = threading.Thread(target=throw)
    throwing.start()
    for _ in range(3):
        assert server.post("/v1/completions", SHORT).status_code == 200
    throwing.join(90)
    assert answers[0].status_code in (200, 400), answers[0].text
    assert not server.wait_until_idle()["has_leak"]


@pytest.mark.slow
def test_many_bombs_at_once_do_not_block_the_tokenizer_threads(start_server):
    pytest.importorskip("xgrammar")
    running, answers = start_server("--draft", "none"), []

    def throw(number):
        bomb = {"regex": f"((a{{1,500}}){{1,500}}){{1,{500 + number}}}"}  # each is a new one
        body = {**SHORT, "structured_outputs": bomb, "max_tokens": 8}
        with contextlib.suppress(httpx.TransportError):  # the server ends before it answers
            answers.append(httpx.post(f"{running.url}/v1/completions", json=body, timeout=60))

    throwing = [threading.Thread(target=throw, args=(number,)) for number in range(6)]
    for each in throwing:
        each.start()
    time.sleep(0.3)  # all have arrived; each takes seconds to compile, one after the other
    num_served = 0
    while num_served < 20 and not answers:
        assert running.post("/v1/completions", SHORT).status_code == 200
        num_served += 1
    running.terminate()
    with pytest.raises(subprocess.TimeoutExpired):
        running.process.wait(0.5)
    running.terminate()
    running.process.wait(30)  # whatever is still being compiled
    for each in throwing:
        each.join(120)
    assert num_served == 20


def test_a_prompt_that_cannot_fit_is_refused_before_any_step(server):
    server.post("/v1/completions", SHORT)
    server.wait_until_idle()
    before = counter(server, "steps_total")
    for path, body in (
        ("/v1/completions", {**SHORT, "prompt": "the " * 9000}),
        ("/v1/completions", {**SHORT, "prompt": [5] * 9000}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "the " * 9000}]}),
        ("/v1/responses", {"input": "the " * 9000}),
        ("/generate", {"text": "the " * 9000}),
    ):
        response = server.post(path, body)
        assert response.status_code == 400
        assert "context" in response.json()["error"]["message"]
    server.wait_until_idle()
    assert counter(server, "steps_total") == before


@pytest.mark.slow
def test_the_server_answers_while_a_long_text_is_tokenised(server):
    text, done = "the tale of " * 80_000, []  # a megabyte, which takes seconds

    def tokenise():
        done.append(httpx.post(f"{server.url}/tokenize", json={"prompt": text}, timeout=120))

    tokenising, num_answers = threading.Thread(target=tokenise), 0
    tokenising.start()
    while tokenising.is_alive() and num_answers < 50:
        assert server.get("/health").status_code == 200
        num_answers += 1
    is_still_busy = tokenising.is_alive()
    tokenising.join(120)
    assert done[0].status_code == 200
    assert num_answers >= 5 or is_still_busy


def test_a_text_of_several_megabytes_is_not_tokenised(server):
    answer = server.post("/tokenize", {"prompt": "the tale of " * 100_000})
    assert answer.status_code == 400
    assert "send it in parts" in answer.json()["error"]["message"]


def test_the_server_answers_while_the_engine_computes(server):
    body = {"prompt": [5] * 3000, "max_tokens": 1000, "ignore_eos": True, "n": 8, "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as response:
        wait_for(lambda: server.invariants["queue"]["running"] > 0)
        for _ in range(20):
            assert server.get("/health").status_code == 200
        assert server.get("/metrics").status_code == 200
        assert response.status_code == 200
    assert not server.wait_until_idle()["has_leak"]


BOMB = {"n": 128, "logit_bias": {str(token): 1 for token in range(300)}}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": ["a"] * 1024, **BOMB}),
        ("/v1/completions", {"prompt": [5] * 3000, "n": 128, "stop_token_ids": [5] * 40_000}),
        ("/v1/completions", {"prompt": "a", "n": 128, "logprobs": 20, "max_tokens": 4000}),
        ("/v1/chat/completions", {"messages": [], "n": 128, "logprobs": True, "top_logprobs": 20}),
        ("/generate", {"text": ["a"] * 1024, "sampling_params": BOMB}),
        ("/generate", {"text": "a", "sampling_params": {"n": 128, "stop": ["a" * 1000] * 60}}),
    ],
)
def test_a_call_that_costs_too_much_is_refused_with_the_limit(server, path, body):
    if "messages" in body:
        body = {**body, "messages": [{"role": "user", "content": "the"}]}
    response = server.post(path, body)
    message = response.json()["error"]["message"]
    assert response.status_code == 400
    assert "the request wants" in message or "a request may have" in message
