"""vLLM's /sleep, /wake_up and /is_sleeping on a real server."""

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from support.served import wait_for

BODY = {"prompt": "the cat", "max_tokens": 40, "temperature": 0.9, "seed": 3, "ignore_eos": True}


@pytest.fixture
def awake(server):
    """The server, awake again after the test."""
    yield server
    assert server.post("/wake_up", None).status_code == 200
    assert not server.wait_until_idle()["has_leak"]


def is_sleeping(server):
    return server.get("/is_sleeping").json() == {"is_sleeping": True}


def sleep(server, query=""):
    assert server.post(f"/sleep{query}", None).status_code == 200
    assert is_sleeping(server)


def wake_up(server, query=""):
    assert server.post(f"/wake_up{query}", None).status_code == 200


def answer(server, **fields):
    response = server.post("/v1/completions", {**BODY, **fields})
    assert response.status_code == 200
    return response.json()["choices"][0]["text"]


def metric(server, name, label):
    lines = server.get("/metrics").text.splitlines()
    (line,) = (each for each in lines if each.startswith(name) and label in each)
    return float(line.rpartition(" ")[2])


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("level", [0, 1, 2])
def test_requests_wait_while_the_server_sleeps_and_get_the_same_answer(awake, level):
    before = answer(awake)
    sleep(awake, f"?level={level}")
    assert awake.get("/health").status_code == 200  # the server is well, and accepts requests
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(answer, awake)
        wait_for(lambda: metric(awake, "vllm:num_requests_waiting", "model_name") == 1)
        assert not waiting.done()
        wake_up(awake)
        assert waiting.result(30) == before
    assert not is_sleeping(awake)


def test_metrics_and_log_tell_that_the_server_sleeps(awake):
    state = "vllm:engine_sleep_state"
    assert metric(awake, state, 'sleep_state="awake"') == 1
    sleep(awake)
    assert metric(awake, state, 'sleep_state="awake"') == 0
    assert metric(awake, state, 'sleep_state="weights_offloaded"') == 1
    wake_up(awake)
    assert metric(awake, state, 'sleep_state="awake"') == 1
    wait_for(lambda: "asleep (kv_cache, scheduling, weights) after" in awake.log.read_text())


def test_running_requests_end_unless_the_mode_keeps_them(awake):
    with httpx.stream(
        "POST",
        f"{awake.url}/v1/completions",
        json={**BODY, "max_tokens": 3000, "stream": True},
        timeout=30,
    ) as stream:
        lines = stream.iter_lines()
        next(lines)
        sleep(awake)
        assert any('"finish_reason":"abort"' in line for line in lines)


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("mode", ["keep", "wait"])
def test_running_requests_finish_with_the_same_answer(awake, mode):
    """With keep they go on after waking up, with wait they finish before."""
    body = {**BODY, "max_tokens": 120, "stream": True}
    before = answer(awake, max_tokens=120)
    with httpx.stream("POST", f"{awake.url}/v1/completions", json=body, timeout=30) as stream:
        lines = stream.iter_lines()
        text = text_of(next(lines))
        sleep(awake, f"?mode={mode}")
        if mode == "keep":
            wake_up(awake)
        assert text + "".join(map(text_of, lines)) == before


def text_of(line):
    """The text of a line of a stream."""
    if not line.startswith("data: {"):
        return ""
    return "".join(choice["text"] for choice in json.loads(line[6:])["choices"])


def test_the_server_sleeps_until_all_tags_are_woken(awake):
    before = answer(awake)
    sleep(awake, "?level=2")
    wake_up(awake, "?tags=weights")
    assert is_sleeping(awake)
    wake_up(awake, "?tags=kv_cache")
    assert not is_sleeping(awake)
    assert answer(awake) == before


@pytest.mark.parametrize("query", ["sleep?level=3", "sleep?mode=now", "wake_up?tags=weight"])
def test_unknown_words_are_refused(awake, query):
    response = awake.post(f"/{query}", None)
    assert response.status_code == 400
    assert "must be" in response.text or "tags are" in response.text
    assert not is_sleeping(awake)


@pytest.mark.slow
def test_a_worker_that_dies_asleep_is_replaced_by_one_that_sleeps(start_server):
    server = start_server("--draft", "ngram")
    try:
        before = answer(server)
        sleep(server)
        os.kill(server.invariants["worker_pid"], signal.SIGKILL)
        wait_for(lambda: server.get("/invariants").status_code != 200)
        server.wait_until_idle()
        assert is_sleeping(server)
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(answer, server)
            wait_for(lambda: metric(server, "vllm:num_requests_waiting", "model_name") == 1)
            wake_up(server)
            assert waiting.result(30) == before
    finally:
        assert server.stop() == 0
