"""Copies of a model behind one address: they answer as one does, and do not wait for each other."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from support.served import ServerProcess, wait_for
from support.spoken import tiny_llama, write_tokenizer

BODIES = [
    {
        "model": "tiny",
        "prompt": "th" * (1 + number % 40),
        "seed": number,
        "max_tokens": 12 + number % 9,
        "ignore_eos": True,
    }
    for number in range(24)
]
DIGITS = {"model": "tiny", "prompt": "n", "max_tokens": 8, "seed": 1, "guided_regex": "[0-9]{6}"}


@pytest.fixture(scope="module", name="folder")
def model_with_text(tmp_path_factory):
    folder = tmp_path_factory.mktemp("replicas")
    tiny_llama(512).save_pretrained(folder)
    write_tokenizer(folder)
    return folder


@pytest.fixture(name="start")
def start_and_end_server(folder, tmp_path):
    started = []

    def start(*flags):
        usual = ("--served-model-name", "tiny", "--draft", "ngram", "--no-adaptive")
        started.append(ServerProcess(folder, tmp_path / "log", *usual, *flags))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()


def texts(server, bodies=BODIES):
    def answer(body):
        response = server.post("/v1/completions", body)
        assert response.status_code == 200, response.text
        return response.json()["choices"][0]["text"]

    with ThreadPoolExecutor(len(bodies)) as pool:
        return list(pool.map(answer, bodies))


@pytest.mark.slow
def test_replicas_answer_as_one_server_does_and_survive_the_loss_of_one(start):
    one = start()
    expected, digits = texts(one), texts(one, [DIGITS])
    one.process.kill()
    server = start("--dp", "2")
    info = server.get("/server_info").json()
    assert (info["dp_size"], [rank["rank"] for rank in info["ranks"]]) == (2, [0, 1])
    pids = server.invariants["worker_pids"]
    assert len(set(pids)) == 2
    assert texts(server) == expected
    assert texts(server, [DIGITS]) == digits  # structured output, as without replicas
    with ThreadPoolExecutor() as pool:
        running = pool.submit(texts, server)
        os.kill(pids[1], signal.SIGKILL)
        assert server.get("/health").status_code == 200  # the other one answers
        assert running.result(120) == expected
    wait_for(lambda: len(set(server.invariants["worker_pids"]) - set(pids)) == 1)
    assert server.invariants["worker_pids"][0] == pids[0]
    assert not server.wait_until_idle()["has_leak"]


@pytest.mark.slow
def test_replicas_of_two_ranks_sleep_and_answer_again(start):
    server = start("--dp", "2", "--tp", "2")
    info = server.get("/server_info").json()
    assert (info["tp_size"], info["dp_size"]) == (2, 2)
    assert [rank["rank"] for rank in info["ranks"]] == [0, 1, 2, 3]
    assert len({rank["pid"] for rank in info["ranks"]}) == 4
    before = texts(server, BODIES[:6])
    assert httpx.post(f"{server.url}/sleep?level=1", timeout=60).status_code == 200
    assert server.get("/is_sleeping").json() == {"is_sleeping": True}
    assert httpx.post(f"{server.url}/wake_up", timeout=120).status_code == 200
    assert texts(server, BODIES[:6]) == before
    assert not server.wait_until_idle()["has_leak"]
