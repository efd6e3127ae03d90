"""Many clients at once, some of which leave: all get their own answers, and nothing leaks."""

import time

import pytest
from support.load import make_requests, resident_bytes, send_all
from support.served import wait_for

from outrider import LLM, SamplingParams

SEED = 20
NUM_REQUESTS = 200
NUM_LARGE = 80  # requests to the default model: five times its rows
MIB = 2**20


@pytest.fixture(scope="module", params=["tiny", pytest.param("default", marks=pytest.mark.slow)])
def crowd(request):
    """A server, the same model offline without a drafter, its name, and how long answers are."""
    if request.param == "tiny":
        server, llm = request.getfixturevalue("server"), request.getfixturevalue("llm")
        return server, llm, "tiny", 60
    folder = request.getfixturevalue("smollm2_folder")
    server = request.getfixturevalue("default_server")
    return server, LLM(folder, draft="none", device="cpu", kv_tokens=4096), "default", 8


@pytest.mark.timeout(600)  # many answers, twice, on a machine that may be busy
@pytest.mark.slow
def test_every_answer_under_load_is_its_offline_answer_and_nothing_leaks(crowd):
    server, llm, model, longest = crowd
    num_requests = NUM_REQUESTS if model == "tiny" else NUM_LARGE
    requests = list(make_requests(num_requests, seed=SEED, longest=longest))
    texts = send_all(server.url, model, requests)
    outputs = llm.generate(
        [each.prompt for each in requests],
        [SamplingParams(**each.params) for each in requests],
        use_tqdm=False,
    )
    for text, output, sent in zip(texts, outputs, requests, strict=True):
        whole = output.outputs[0].text
        assert text == whole if sent.leaves_after is None else whole.startswith(text)
    state = server.wait_until_idle()
    assert not state["has_leak"]
    assert state["rows"]["free"] == state["rows"]["total"]
    assert state["pages"]["free"] == state["pages"]["total"]
    assert not any(state["faults"].values())


@pytest.fixture(scope="module", params=["tiny", "default"])
def orderly(request, start_server):
    """A server with few rows, whose steps soon have had every shape; a name, and a length."""
    if request.param == "default":
        yield request.getfixturevalue("default_server"), "default", 8
        return
    flags = ("--draft", "ngram", "--no-adaptive", "--kv-tokens", "4096", "--max-num-seqs", "4")
    running = start_server(*flags)
    yield running, "tiny", 12
    assert running.stop() == 0


def least_resident_mib(pid):
    """The memory of an idle process, which releases what is free within these two seconds."""
    found = []
    for _ in range(20):
        found.append(resident_bytes(pid) / MIB)
        time.sleep(0.1)
    return min(found)


@pytest.mark.slow
def test_memory_stays_flat_while_crowds_come_and_go(orderly):
    server, model, longest = orderly
    pids = {"server": server.process.pid, "worker": server.invariants["worker_pid"]}
    num_requests, num_rounds = (NUM_REQUESTS, 8) if model == "tiny" else (32, 6)
    bound = 8 if model == "tiny" else 24  # of a thousand requests, of a hundred larger ones
    requests = list(make_requests(num_requests, seed=SEED, longest=longest))

    def send_crowds(num_crowds):
        for _ in range(num_crowds):
            send_all(server.url, model, requests)
            server.wait_until_idle()

    send_crowds(num_rounds // 2)  # what was reserved is touched for the first time
    before = {name: least_resident_mib(pid) for name, pid in pids.items()}
    send_crowds(num_rounds // 2)
    for name, pid in pids.items():
        # Idle processes release free memory after a while, but never what leaked.
        wait_for(lambda name=name, pid=pid: resident_bytes(pid) / MIB < before[name] + bound)
    assert not server.invariants["has_leak"]
