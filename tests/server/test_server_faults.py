"""Clients that leave or do not read, a full queue, a worker that dies, a signal to end."""

import json
import os
import signal
import socket
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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


@dataclass(frozen=True, kw_only=True)
class Narrow:
    """A server with two rows and a short queue, and how to ask it."""

    server: ServerProcess
    key: dict[str, str]
    long: dict[str, Any]  # takes seconds
    short: dict[str, Any]
    max_queued: int
    answer: int  # tokens that take a second or more

    def post(self, body, **headers):
        url = f"{self.server.url}/v1/completions"
        return httpx.post(url, json=body, headers={**self.key, **headers}, timeout=120)

    @property
    def state(self):
        return self.server.get("/invariants", headers=self.key).json()


@pytest.fixture(scope="module", params=["tiny", pytest.param("default", marks=pytest.mark.slow)])
def narrow(request, small):
    if request.param == "tiny":
        key = {"Authorization": "Bearer sesame"}
        yield Narrow(server=small, key=key, long=LONG, short=SHORT, max_queued=1, answer=1500)
        return
    log = request.getfixturevalue("tmp_path_factory").mktemp("narrow") / "stderr"
    folder = request.getfixturevalue("smollm2_folder")
    flags = ("--served-model-name", "default", "--max-num-seqs", "2", "--max-queued", "5")
    running = ServerProcess(folder, log, *flags, "--draft", "ngram", "--kv-tokens", "4096")
    named = {"model": "default"}
    long, short = {**LONG, **named, "max_tokens": 1500}, {**SHORT, **named}
    yield Narrow(server=running, key={}, long=long, short=short, max_queued=5, answer=300)
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


def text_of(events):
    """The text of a stream that ended well."""
    assert events[-1] == "[DONE]"
    return "".join(json.loads(each)["choices"][0]["text"] for each in events[:-1])


def test_a_client_that_leaves_ends_its_request(server):
    connection = open_stream(server, LONG)
    wait_for(lambda: server.invariants["queue"]["running"] == 1)
    connection.close()
    assert not server.wait_until_idle()["has_leak"]


def test_a_client_that_leaves_before_its_whole_answer_ends_it_too(server):
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{server.url}/v1/completions", json=LONG, timeout=0.2)
    assert not server.wait_until_idle()["has_leak"]


@pytest.mark.slow
def test_a_client_that_does_not_read_delays_no_other(server):
    with open_stream(server, {**LONG, "max_tokens": 500, "logprobs": 20}):  # half a megabyte
        for _ in range(3):
            assert server.post("/v1/completions", SHORT).status_code == 200
        wait_for(lambda: server.invariants["queue"]["running"] == 0)  # its tokens are in the server
        assert server.invariants["open_calls"] == 1
    assert not server.wait_until_idle()["has_leak"]


def test_a_wrong_key_is_refused(small):
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "sesame"}):
        response = small.get("/v1/models", headers=headers)
        assert response.status_code == 401
        assert response.json()["error"]["code"] == "invalid_api_key"
    assert [small.get(path).status_code for path in ("/health", "/version")] == [200, 200]
    known = openai.OpenAI(base_url=f"{small.url}/v1", api_key="sesame")
    assert known.models.list().data[0].id == "tiny"


def test_a_full_queue_answers_429_and_when_to_come_back(narrow):
    taken = [
        open_stream(narrow.server, narrow.long, **narrow.key) for _ in range(2 + narrow.max_queued)
    ]
    response = narrow.post(narrow.short)
    assert response.status_code == 429
    assert int(response.headers["Retry-After"]) >= 1
    assert response.json()["error"]["type"] == "rate_limit_error"
    for connection in taken:
        connection.close()
    wait_for(lambda: narrow.post(narrow.short).status_code == 200)
    wait_for(lambda: narrow.state["is_idle"])
    assert not narrow.state["has_leak"]


def test_a_request_for_more_answers_than_there_is_room_leaves_nothing_behind(narrow):
    room = 2 + narrow.max_queued
    refused = narrow.post({**narrow.short, "n": room + 1})
    assert refused.status_code == 400  # not 429: trying again would never help
    assert f"{room + 1} answers and the server holds {room}" in refused.json()["error"]["message"]
    wait_for(lambda: narrow.state["is_idle"])
    assert narrow.post({**narrow.short, "n": room}).status_code == 200
    assert not narrow.state["has_leak"]


def test_a_client_that_reads_nothing_holds_neither_a_row_nor_others(narrow):
    mute = {**narrow.long, "max_tokens": 100, "logprobs": 20}
    with open_stream(narrow.server, mute, **narrow.key):
        for _ in range(3):
            assert narrow.post(narrow.short).status_code == 200
        wait_for(lambda: narrow.state["queue"]["running"] == 0)
    wait_for(lambda: narrow.state["is_idle"])
    assert not narrow.state["has_leak"]


def test_a_prompt_beyond_the_context_is_refused(narrow):
    response = narrow.post({**narrow.short, "prompt": [5] * 9000})
    assert response.status_code == 400
    assert "context" in response.json()["error"]["message"]


@pytest.mark.slow
def test_after_a_killed_worker_the_next_one_goes_on_with_every_answer(narrow):
    before = narrow.post(narrow.short).json()["choices"][0]["text"]
    long = {**narrow.long, "max_tokens": narrow.answer, "seed": 5}
    whole = narrow.post(long).json()["choices"][0]["text"]
    answers, ended = [], []

    def ask():
        answers.append(narrow.post(narrow.short).json())

    def read():
        url, body = f"{narrow.server.url}/v1/completions", {**long, "stream": True}
        with httpx.stream("POST", url, json=body, headers=narrow.key, timeout=120) as response:
            ended.append([line.removeprefix("data: ") for line in response.iter_lines() if line])

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    wait_for(lambda: narrow.state["queue"]["running"] == 2)
    queued = [threading.Thread(target=ask) for _ in range(narrow.max_queued)]
    for each in queued:
        each.start()
    wait_for(lambda: narrow.state["queue"]["waiting"] == len(queued))
    pid = narrow.state["worker_pid"]
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: narrow.server.get("/health").status_code == 503)  # until another is loaded
    wait_for(lambda: narrow.server.get("/health").status_code == 200, within_s=120)
    for each in (*queued, *readers):
        each.join(120)
    assert [text_of(events) for events in ended] == [whole] * 2
    assert [each["choices"][0]["text"] for each in answers] == [before] * len(queued)
    assert narrow.state["worker_pid"] != pid
    assert not narrow.state["has_leak"]
    metrics = narrow.server.get("/metrics", headers=narrow.key).text
    assert "outrider:worker_restarts_total" in metrics


@pytest.mark.slow
def test_a_second_signal_does_not_wait(start_server):
    running = start_server("--draft", "none")
    worker = running.invariants["worker_pid"]
    with open_stream(running, LONG):  # it is never read, so it would never end
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
    reader.join(120)
    assert "data: [DONE]" in lines
    assert small.process.wait(30) == 0
