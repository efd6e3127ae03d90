"""Callers that leave or do not read, a queue that is full, a worker that dies, a signal to end."""

import json
import os
import signal
import socket
import subprocess
import threading
from pathlib import Path

import httpx
import openai
import pytest
from support.served import ServerProcess, wait_for

LONG = {"prompt": "the", "max_tokens": 3000, "ignore_eos": True, "model": "tiny"}
SHORT = {"prompt": "the", "max_tokens": 4, "seed": 1, "model": "tiny"}


@pytest.fixture(scope="module")
def small(start_server):
    """A server with a key, two rows and a queue of one."""
    flags = ("--api-key", "sesame", "--max-num-seqs", "2", "--max-queued", "1")
    running = start_server(*flags, "--draft", "none")
    yield running
    assert running.stop() == 0


def open_stream(server, body, **headers):
    """A connection on which a stream has begun, to be read or not."""
    content = json.dumps({**body, "stream": True}).encode()
    host, port = server.url.removeprefix("http://").split(":")
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect((host, int(port)))
    lines = [
        "POST /v1/completions HTTP/1.1",
        f"Host: {host}",
        "Content-Type: application/json",
        f"Content-Length: {len(content)}",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    connection.sendall("\r\n".join([*lines, "", ""]).encode() + content)
    assert connection.recv(12) == b"HTTP/1.1 200"
    return connection


def test_a_caller_that_leaves_ends_its_request(server):
    connection = open_stream(server, LONG)
    wait_for(lambda: server.invariants["queue"]["running"] == 1)
    connection.close()
    assert not server.wait_until_idle()["has_leak"]


def test_a_caller_that_leaves_before_its_whole_answer_ends_it_too(server):
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{server.url}/v1/completions", json=LONG, timeout=0.2)
    assert not server.wait_until_idle()["has_leak"]


def test_a_caller_that_does_not_read_holds_up_nobody(server):
    with open_stream(server, {**LONG, "max_tokens": 500, "logprobs": 20}):  # half a megabyte
        for _ in range(3):
            assert server.post("/v1/completions", SHORT).status_code == 200
        wait_for(lambda: server.invariants["queue"]["running"] == 0)  # its tokens wait in the front
        assert server.invariants["open_calls"] == 1
    assert not server.wait_until_idle()["has_leak"]


def test_strangers_are_turned_away(small):
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "sesame"}):
        response = small.get("/v1/models", headers=headers)
        assert response.status_code == 401
        assert response.json()["error"]["code"] == "invalid_api_key"
    assert small.get("/health").status_code == 200
    known = openai.OpenAI(base_url=f"{small.url}/v1", api_key="sesame")
    assert known.models.list().data[0].id == "tiny"


def test_a_full_queue_answers_429_and_when_to_come_back(small):
    key = {"Authorization": "Bearer sesame"}
    connections = [open_stream(small, LONG, **key) for _ in range(3)]  # two run, one waits
    response = small.post("/v1/completions", SHORT, headers=key)
    assert response.status_code == 429
    assert int(response.headers["Retry-After"]) >= 1
    assert response.json()["error"]["type"] == "rate_limit_error"
    for connection in connections:
        connection.close()
    wait_for(lambda: small.post("/v1/completions", SHORT, headers=key).status_code == 200)


def test_a_call_for_more_answers_than_there_is_room_leaves_nothing_behind(small):
    key = {"Authorization": "Bearer sesame"}
    response = small.post("/v1/completions", {**SHORT, "n": 4}, headers=key)
    assert response.status_code == 429
    wait_for(lambda: small.get("/invariants", headers=key).json()["is_idle"])
    assert small.post("/v1/completions", {**SHORT, "n": 3}, headers=key).status_code == 200


@pytest.fixture(scope="module", params=["tiny", "default"])
def mortal(request, small):
    """A server with two rows whose worker will be killed, how to ask it, and for how long."""
    if request.param == "tiny":
        yield small, {"Authorization": "Bearer sesame"}, {"model": "tiny"}, 3000
        return
    log = request.getfixturevalue("tmp_path_factory").mktemp("mortal") / "stderr"
    folder = request.getfixturevalue("smollm2_folder")
    flags = ("--served-model-name", "default", "--max-num-seqs", "2", "--draft", "ngram")
    running = ServerProcess(folder, log, *flags, "--kv-tokens", "4096")
    yield running, {}, {"model": "default"}, 1500
    assert running.stop() == 0


def test_a_killed_worker_ends_what_ran_and_the_next_one_serves_the_rest(mortal):
    server, key, named, length = mortal
    long, short = {**LONG, **named, "max_tokens": length}, {**SHORT, **named}
    before = server.post("/v1/completions", short, headers=key).json()["choices"][0]["text"]
    answers, ended = [], []

    def ask():
        url = f"{server.url}/v1/completions"
        answers.append(httpx.post(url, json=short, headers=key, timeout=120).json())

    def read():
        url, body = f"{server.url}/v1/completions", {**long, "stream": True}
        with httpx.stream("POST", url, json=body, headers=key, timeout=120) as response:
            ended.append([line.removeprefix("data: ") for line in response.iter_lines() if line])

    def counted(name):
        return server.get("/invariants", headers=key).json()["queue"][name]

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    wait_for(lambda: counted("running") == 2)
    queued = [threading.Thread(target=ask) for _ in range(1 if key else 5)]  # a small queue of one
    for each in queued:
        each.start()
    wait_for(lambda: counted("waiting") == len(queued))
    pid = server.get("/invariants", headers=key).json()["worker_pid"]
    os.kill(pid, signal.SIGKILL)
    for reader in readers:
        reader.join(30)
    for events in ended:
        assert events[-1] == "[DONE]"
        assert json.loads(events[-2])["error"]["code"] == "engine_error"
    assert server.get("/health").status_code == 503  # a worker takes seconds to load
    wait_for(lambda: server.get("/health").status_code == 200, within_s=120)
    for each in queued:
        each.join(120)
    assert len(ended) == 2
    assert [each["choices"][0]["text"] for each in answers] == [before] * len(queued)
    state = server.get("/invariants", headers=key).json()
    assert state["worker_pid"] != pid
    assert not state["has_leak"]
    assert "outrider:worker_restarts_total" in server.get("/metrics", headers=key).text


def test_a_second_signal_does_not_wait(start_server):
    running = start_server("--draft", "none")
    worker = running.invariants["worker_pid"]
    with open_stream(running, LONG):  # which nobody reads, so that it would never end
        running.terminate()
        with pytest.raises(subprocess.TimeoutExpired):
            running.process.wait(0.5)
        running.terminate()
        running.process.wait(30)
    wait_for(lambda: not Path(f"/proc/{worker}").exists())


def test_the_ready_line_is_the_only_one(server):
    assert server.ready_line == f"outrider serves tiny at {server.url}"
    assert server.url.startswith("http://127.0.0.1:")


def test_a_signal_lets_answers_finish(small):
    lines, key = [], {"Authorization": "Bearer sesame"}

    def read():
        body = {**LONG, "max_tokens": 500, "stream": True}
        url = f"{small.url}/v1/completions"
        with httpx.stream("POST", url, json=body, headers=key, timeout=60) as response:
            lines.extend(response.iter_lines())

    reader = threading.Thread(target=read)
    reader.start()
    wait_for(lambda: small.get("/invariants", headers=key).json()["open_calls"] == 1)
    small.terminate()
    reader.join(60)
    assert "data: [DONE]" in lines
    assert small.process.wait(30) == 0
