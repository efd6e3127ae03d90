"""Workers that die under load: no request is lost but the one that kills them."""

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle

import pytest
from support.processes import descendants_of, wait_for_end
from support.served import ServerProcess, wait_for
from support.spoken import PIECES

pytestmark = pytest.mark.timeout(600)  # new workers take long on a busy machine

# Python runs this file in every process that has its folder on the path. A worker with it dies in
# the first step of a prompt that begins with two dots.
POISONED = """
import os, signal, sys
if "outrider.server.worker_process" in sys.orig_argv:
    from outrider.engine.step_watch import StepWatch
    note = StepWatch.note
    def note_and_die(self, in_flight, submitted):
        note(self, in_flight, submitted)
        for placement in submitted.placements:
            if placement.request.submission.prompt[:2] == (POISON, POISON):
                os.kill(os.getpid(), signal.SIGKILL)
    StepWatch.note = note_and_die
"""


def body(number, **more):
    return {"prompt": "th" * (1 + number % 7), "seed": number, "model": "tiny", **more}


def ask_all(server, bodies):
    """All answers, asked for at the same time; the first field is the status."""

    def ask(each):
        response = server.post("/v1/completions", each, timeout=300)
        answer = response.json()
        if response.status_code != 200:
            return response.status_code, answer["error"]["message"]
        return 200, answer["choices"][0]["text"]

    with ThreadPoolExecutor(len(bodies)) as threads:
        return list(threads.map(ask, bodies))


@pytest.mark.slow
def test_two_killed_workers_under_120_requests_lose_none(start_server):
    running = start_server("--draft", "ngram", "--no-adaptive", "--max-num-seqs", "8")
    bodies = [body(number, max_tokens=60, ignore_eos=True) for number in range(120)]
    for each in bodies[::20]:
        each["structured_outputs"] = {"regex": "[a-z]{40,50}"}
    expected = ask_all(running, bodies)
    assert {status for status, _ in expected} == {200}

    def is_busy():
        # Between two workers there is no queue to report.
        return running.invariants.get("queue", {"running": 0})["running"] > 0

    def kill_worker():
        wait_for(is_busy)
        pid = running.invariants["worker_pid"]
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: running.invariants.get("worker_pid", pid) != pid)

    killing = threading.Thread(target=lambda: [kill_worker() for _ in range(2)])
    killing.start()
    answers = ask_all(running, bodies)
    while killing.is_alive():  # a late first kill leaves the second nothing to interrupt
        answers += ask_all(running, bodies)
    assert 'outrider:worker_restarts_total{model_name="tiny"} 2.0' in running.get("/metrics").text
    # An answer that was alone in the second lost step may end; it had begun.
    wrong = [each for each, right in zip(answers, cycle(expected), strict=False) if each != right]
    assert len(wrong) <= 1, wrong
    assert all("2 lost steps, the last alone" in message for _, message in wrong)
    assert not running.wait_until_idle()["has_leak"]
    assert running.stop() == 0


@pytest.mark.slow
def test_a_poison_request_ends_and_its_neighbours_complete(served_folder, tmp_path):
    source = POISONED.replace("POISON", str(PIECES.index(".")))
    (tmp_path / "sitecustomize.py").write_text(source)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    running = ServerProcess(
        served_folder,
        tmp_path / "stderr",
        *("--served-model-name", "tiny", "--draft", "none", "--max-num-seqs", "4"),
        environment={"PYTHONPATH": path},
    )
    bodies = [body(number, max_tokens=200, ignore_eos=True) for number in range(12)]
    expected = ask_all(running, bodies)
    assert {status for status, _ in expected} == {200}
    (*answers, (status, message)) = ask_all(running, [*bodies, {**body(0), "prompt": ".."}])
    assert answers == expected
    assert status == 500
    assert message.endswith("The request was in 2 lost steps, the last alone")
    metrics = running.get("/metrics").text
    assert 'outrider:suspect_requests_total{model_name="tiny"} 1.0' in metrics
    assert 'outrider:worker_restarts_total{model_name="tiny"} 2.0' in metrics
    assert not running.wait_until_idle()["has_leak"]
    assert running.stop() == 0


@pytest.mark.slow
@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_worker_and_its_children_die_with_a_killed_server(start_server, is_stopped):
    running = start_server("--draft", "none")
    grammar = body(0, max_tokens=4, structured_outputs={"regex": "[a-z]+"})
    assert running.post("/v1/completions", grammar, timeout=60).status_code == 200
    pids = descendants_of(running.process.pid)
    worker = running.invariants["worker_pid"]
    assert worker in pids
    assert len(pids) > 1
    if is_stopped:
        os.kill(worker, signal.SIGSTOP)
    running.process.kill()
    running.process.wait()
    for pid in pids:
        wait_for_end(pid)
