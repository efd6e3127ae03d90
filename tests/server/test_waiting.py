"""A stream that waits sends comments, and a request with a smaller priority goes first."""

import json
import threading

import httpx
import openai
import pytest
from support.served import wait_for

pytestmark = pytest.mark.slow  # a server of its own

LONG = {"prompt": "the", "max_tokens": 3000, "ignore_eos": True, "model": "tiny"}
SHORT = {"prompt": "the", "max_tokens": 4, "seed": 1, "model": "tiny"}


@pytest.fixture(scope="module")
def narrow(start_server):
    """A server with one row, for which the others wait."""
    flags = ("--draft", "none", "--max-num-seqs", "1", "--scheduling-policy", "priority")
    running = start_server(*flags, "--stream-ping-s", "0.02")
    yield running
    assert running.stop() == 0


def occupy_the_row(server):
    """A stream that holds the only row until it is closed."""
    client = httpx.Client(timeout=60)
    request = client.build_request(
        "POST", f"{server.url}/v1/completions", json={**LONG, "stream": True}
    )
    response = client.send(request, stream=True)
    wait_for(lambda: server.invariants["queue"]["running"] == 1)
    return response


@pytest.mark.slow
def test_a_stream_that_waits_sends_comments_and_then_its_answer(narrow):
    first, lines = occupy_the_row(narrow), []
    with httpx.stream(
        "POST", f"{narrow.url}/v1/completions", json={**SHORT, "stream": True}, timeout=60
    ) as response:
        assert response.status_code == 200
        for line in response.iter_lines():
            lines.append(line)
            if lines.count(": ping") == 3:
                first.close()
    begin = next(i for i, line in enumerate(lines) if line.startswith("data:"))
    assert set(lines[:begin]) == {": ping", ""}
    assert lines.count(": ping") >= 3
    assert [line for line in lines if line.startswith("data:")][-1] == "data: [DONE]"


def test_the_openai_client_skips_the_comments(narrow):
    first, texts = occupy_the_row(narrow), []
    client = openai.OpenAI(base_url=f"{narrow.url}/v1", api_key="none", max_retries=0, timeout=60)
    stream = client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "the"}],
        max_tokens=4,
        seed=1,
        stream=True,
    )
    threading.Timer(0.2, first.close).start()
    texts = [chunk.choices[0].delta.content or "" for chunk in stream]
    whole = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "the"}], max_tokens=4, seed=1
    )
    assert "".join(texts) == whole.choices[0].message.content


def test_a_smaller_priority_goes_first(narrow):
    first, order = occupy_the_row(narrow), []

    def ask(name, priority):
        # Long enough that the clients' threads note the ends in their order.
        body = {**SHORT, "max_tokens": 100, "ignore_eos": True, "priority": priority}
        assert narrow.post("/v1/completions", body).status_code == 200
        order.append(name)

    asking = []
    for count, (name, priority) in enumerate([("late", 5), ("usual", 0)], start=1):
        asking.append(threading.Thread(target=ask, args=(name, priority)))
        asking[-1].start()
        wait_for(lambda count=count: narrow.invariants["queue"]["waiting"] == count)
    first.close()
    for each in asking:
        each.join(120)
    assert order == ["usual", "late"]


def test_a_more_important_request_takes_the_row_and_the_other_goes_on_later(narrow):
    first = occupy_the_row(narrow)
    answer = narrow.post("/v1/completions", {**SHORT, "priority": -1}).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert narrow.invariants["queue"]["running"] + narrow.invariants["queue"]["waiting"] == 1
    first.close()
    assert not narrow.wait_until_idle()["has_leak"]


def test_without_the_policy_a_priority_is_refused(server):
    for path, body in (
        ("/v1/completions", {**SHORT, "priority": 1}),
        ("/v1/completions", {**SHORT, "priority": 1, "stream": True}),
        ("/generate", {"text": "a", "priority": -3}),
    ):
        response = server.post(path, body)
        assert response.status_code == 400
        assert "--scheduling-policy" in json.loads(response.text)["error"]["message"]
    assert server.post("/v1/completions", {**SHORT, "priority": 0}).status_code == 200
