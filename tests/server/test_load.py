"""Many clients at once, some of which leave: all get their own answers, and nothing leaks."""

import time

import pytest
from support.load import make_requests, resident_bytes, send_all

from outrider import LLM, SamplingParams

SEED = 20
NUM_REQUESTS = 200
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


@pytest.mark.timeout(600)  # two hundred answers, twice, on a machine that may be busy
@pytest.mark.slow
def test_every_answer_under_load_is_its_offline_answer_and_nothing_leaks(crowd):
    server, llm, model, longest = crowd
    requests = list(make_requests(NUM_REQUESTS, seed=SEED, longest=longest))
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


@pytest.mark.slow
def test_memory_stays_flat_while_crowds_come_and_go(orderly):
    server, model, longest = orderly
    pids = {"server": server.process.pid, "worker": server.invariants["worker_pid"]}
    num_requests, num_rounds = (NUM_REQUESTS, 12) if model == "tiny" else (32, 6)
    bound = 8 if model == "tiny" else 24  # of a thousand requests, of a hundred larger ones
    held: dict[str, list[float]] = {name: [] for name in pids}
    requests = list(make_requests(num_requests, seed=SEED, longest=longest))
    for _ in range(num_rounds):
        send_all(server.url, model, requests)
        server.wait_until_idle()
        time.sleep(0.4)  # an idle worker releases free memory
        for name, pid in pids.items():
            held[name].append(resident_bytes(pid) / MIB)
    print(held)  # shown when it fails
    half = num_rounds // 2  # until then, what was reserved is touched for the first time
    for rounds in held.values():
        assert rounds[-1] - rounds[half] < bound
    assert not server.invariants["has_leak"]
