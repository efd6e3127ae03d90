"""Ranks that die or hang under load: the group is replaced, and no answer is wrong."""

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from support.processes import LONG_S, descendants_of, is_running, wait_for_end
from support.served import ServerProcess, wait_for
from support.spoken import tiny_llama, write_tokenizer

from outrider import LLM, SamplingParams

NUM_STREAMS = 50
FLAGS = ("--served-model-name", "tiny", "--draft", "ngram", "--no-adaptive", "--tp", "2")
BODIES = [
    {
        "model": "tiny",
        "prompt": "th" * (1 + number % 7),
        "seed": number,
        "max_tokens": 20 + number % 20,
    }
    for number in range(NUM_STREAMS)
]


@pytest.fixture(scope="module", name="folder")
def model_with_text(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranked")
    tiny_llama(512).save_pretrained(folder)
    write_tokenizer(folder)
    return folder


@pytest.fixture(scope="module", name="expected")
def texts_of_one_process(folder):
    llm = LLM(folder, draft="none", device="cpu", max_num_seqs=16)
    params = [
        SamplingParams(temperature=1.0, max_tokens=b["max_tokens"], seed=b["seed"], ignore_eos=True)
        for b in BODIES
    ]
    outputs = llm.generate([b["prompt"] for b in BODIES], params, use_tqdm=False)
    return [each.outputs[0].text for each in outputs]


@pytest.fixture(name="start")
def start_and_end_server(folder, tmp_path):
    started = []

    def start(*flags):
        started.append(ServerProcess(folder, tmp_path / "log", *FLAGS, *flags))
        return started[0]

    yield start
    for each in started:
        each.process.kill()


def read_stream(server, body):
    """The text of a stream, or the message of its error."""
    text, asked = "", {**body, "stream": True, "ignore_eos": True, "temperature": 1.0}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=asked, timeout=300) as response:
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                return f"error: {event['error']['message']}"
            text += event["choices"][0]["text"]
    return text


def other_rank(server):
    return server.get("/server_info").json()["ranks"][1]["pid"]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_killed_and_a_stopped_rank_change_no_answer_and_leak_no_page(start, expected):
    server = start("--max-num-seqs", "8")
    for signal_number, reason in (
        (signal.SIGKILL, "rank 1 has ended"),
        (signal.SIGSTOP, "rank 1 is stopped, for 2 s"),
    ):
        lost, worker = other_rank(server), server.invariants["worker_pid"]
        with ThreadPoolExecutor(NUM_STREAMS) as threads:
            streams = [threads.submit(read_stream, server, body) for body in BODIES]
            streams[4].result()
            os.kill(lost, signal_number)
            answers = [each.result() for each in streams]
        wrong = [each for each, right in zip(answers, expected, strict=True) if each != right]
        assert all(each.startswith("error: ") for each in wrong), wrong
        assert len(wrong) <= 1  # one that was alone in two lost steps
        assert not server.wait_until_idle()["has_leak"]
        assert server.invariants["worker_pid"] != worker
        assert not is_running(lost)
        assert reason in server.log.read_text()
    assert server.stop() == 0


@pytest.mark.slow
def test_an_idle_server_replaces_a_dead_rank_and_ends_with_all_ranks(start):
    server = start()
    about = server.get("/server_info").json()
    assert about["tp_size"] == 2
    assert [each["rank"] for each in about["ranks"]] == [0, 1]
    assert about["ranks"][0]["kv_bytes"] == about["ranks"][1]["kv_bytes"] > 0
    first, lost = (each["pid"] for each in about["ranks"])
    os.kill(lost, signal.SIGKILL)
    wait_for(lambda: not is_running(first))  # no request has to find out

    def is_replaced():  # until the loss is noticed, the server still shows the old ranks
        response = server.get("/server_info")
        ranks = response.json().get("ranks") if response.status_code == 200 else None
        return bool(ranks) and ranks[0]["pid"] != first

    wait_for(is_replaced)
    wait_for(lambda: server.get("/health").status_code == 200)
    pids = [each["pid"] for each in server.get("/server_info").json()["ranks"]]
    os.kill(pids[1], signal.SIGSTOP)  # it cannot end by itself
    server.process.kill()
    for pid in pids:
        wait_for_end(pid)


OFFLINE = """
import sys, time
from outrider import LLM, SamplingParams
for _ in range(2):  # one after the other
    llm = LLM(sys.argv[1], draft="none", device="cpu", tensor_parallel_size=2, kv_tokens=1024)
    llm.generate("the", SamplingParams(max_tokens=4), use_tqdm=False)
    print("answered", flush=True)
    sys.stdin.readline()
    if _ == 0:
        del llm
        print("deleted", flush=True)
try:
    for _ in range(6000):  # a signal just before a sleep counts after it
        time.sleep(0.1)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_ranks_end_with_the_llm_and_with_its_process(folder, end):
    command = [sys.executable, "-c", OFFLINE, str(folder)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "answered\n"
        (first,) = descendants_of(process.pid)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "deleted\n"
        wait_for_end(first)
        assert process.stdout.readline() == "answered\n"
        (second,) = descendants_of(process.pid)
        process.stdin.write("\n")
        process.stdin.flush()
        process.send_signal(end)
        try:
            wait_for_end(second)
            process.wait(LONG_S)
        finally:
            process.kill()  # the end of the block waits for it
