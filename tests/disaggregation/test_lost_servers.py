"""Prefill and decode workers that die or stop under load: answers are right, no page is lost."""

import importlib.util
import os
import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.role_servers import BODY, TEXT, assert_clean, free_port

NUM = 50
STOPPED_S = 7.0  # longer than a decode server waits


def bodies(seed):
    """Long prompts that share no page, and short answers."""
    rng = random.Random(seed)
    words = TEXT.split()
    return [
        {**BODY, "prompt": " ".join(rng.choices(words, k=60)), "seed": place}
        for place in range(NUM)
    ]


def send_both(prefill, decode, port, body, room):
    """As SGLang's routers do: both at once. The answer is the decode server's."""
    more = {"bootstrap_host": "127.0.0.1", "bootstrap_port": port, "bootstrap_room": room}
    other = threading.Thread(target=lambda: prefill.post("/v1/completions", body | more))
    other.start()
    try:
        answer = decode.post("/v1/completions", body | more)
    finally:
        other.join()
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"]


def kill(server):
    os.kill(server.invariants["worker_pid"], signal.SIGKILL)


def stop(server):
    worker = server.invariants["worker_pid"]
    os.kill(worker, signal.SIGSTOP)
    time.sleep(STOPPED_S)
    os.kill(worker, signal.SIGCONT)


@pytest.fixture(scope="module", name="lossy", params=["tcp", "nixl"])
def servers_of_one_backend(request, start):
    if request.param == "nixl" and importlib.util.find_spec("nixl") is None:
        pytest.skip("pip install --no-deps nixl nixl-cu13")
    port = free_port()
    backend = ("--disaggregation-transfer-backend", request.param)
    return start("prefill", *backend, port=port), start("decode", *backend), port


@pytest.mark.slow
@pytest.mark.timeout(280)
@pytest.mark.parametrize("side", ["prefill", "decode"])
@pytest.mark.parametrize("harm", [kill, stop])
def test_a_worker_is_lost_under_load(lossy, servers, harm, side):
    prefill, decode, port = lossy
    single = servers[2]
    seed = f"{harm.__name__} {side} {port}"
    asked, rooms = bodies(seed), random.Random(seed)
    with ThreadPoolExecutor(NUM) as threads:
        right = list(threads.map(lambda body: single.post("/v1/completions", body).json(), asked))
        jobs = [
            threads.submit(send_both, prefill, decode, port, body, rooms.getrandbits(62))
            for body in asked
        ]
        while sum(job.done() for job in jobs) < NUM // 10:
            time.sleep(0.01)
        harm(prefill if side == "prefill" else decode)
        answers = [job.result() for job in jobs]
    assert answers == [each["choices"] for each in right]
    assert_clean(prefill, decode)
