"""A worker that is stopped or stuck in a step is noticed, reported by /health, and replaced."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from support.served import wait_for

from outrider.server.heartbeat import LOOK_S, Heartbeat, HeartbeatLimits
from outrider.server.worker_board import BoardReader, Pulse

LIMITS = HeartbeatLimits(step_s=100.0, silence_s=30.0)
SHORT = {"prompt": "the", "max_tokens": 4, "seed": 1, "model": "tiny"}


def seen(heartbeat, *, beats, loops, seconds):
    """Look for so long at counters that grow, or do not."""
    for number in range(round(seconds / LOOK_S)):
        pulse = Pulse(beats=number if beats else 7, loops=number if loops else 7)
        heartbeat.look(pulse, after_s=LOOK_S)
    return heartbeat


@pytest.mark.parametrize(
    ("seconds", "trouble", "is_hung"),
    [(2, "", False), (5, "has not answered for 4 s", False), (31, "has not answered", True)],
)
def test_a_silent_worker_is_in_trouble_and_then_hung(seconds, trouble, is_hung):
    heartbeat = Heartbeat(LIMITS, is_loading=False)
    seen(heartbeat, beats=False, loops=False, seconds=seconds)
    assert trouble in heartbeat.trouble
    assert bool(heartbeat.trouble) == bool(trouble)
    assert heartbeat.is_hung == is_hung


@pytest.mark.parametrize(
    ("seconds", "trouble", "is_hung"), [(31, "", False), (62, "in one step for 62 s", False)]
)
def test_a_step_has_more_time_than_silence(seconds, trouble, is_hung):
    heartbeat = Heartbeat(LIMITS, is_loading=False)
    seen(heartbeat, beats=True, loops=False, seconds=seconds + LOOK_S)
    assert heartbeat.trouble.endswith(trouble)
    assert not heartbeat.is_hung
    seen(heartbeat, beats=True, loops=False, seconds=100)
    assert heartbeat.is_hung


def test_loading_takes_as_long_as_it_takes_while_the_process_beats():
    heartbeat = Heartbeat(LIMITS, is_loading=True)
    seen(heartbeat, beats=True, loops=False, seconds=3600)
    assert not heartbeat.is_hung
    assert not heartbeat.trouble
    seen(heartbeat, beats=False, loops=False, seconds=99)
    assert not heartbeat.is_hung
    seen(heartbeat, beats=False, loops=False, seconds=3)
    assert heartbeat.is_hung


def test_a_server_that_was_stopped_itself_does_not_blame_its_worker():
    heartbeat = seen(Heartbeat(LIMITS, is_loading=False), beats=True, loops=True, seconds=2)
    heartbeat.look(Pulse(beats=3, loops=3), after_s=3600.0)
    assert not heartbeat.is_hung
    assert not heartbeat.trouble


BEATING = """
import sys, time
from pathlib import Path
from outrider.server.worker_board import WorkerBoard
board = WorkerBoard(Path(sys.argv[1]))
board.start()
board.write_steps(("3-0", "4-1"))
print("beats", flush=True)
time.sleep(60)
"""


@pytest.mark.slow
def test_the_board_of_a_stopped_process_stands_still_and_outlives_it(tmp_path):
    reader = BoardReader(tmp_path / "board")
    assert reader.lost_steps() == frozenset()
    command = [sys.executable, "-c", BEATING, str(tmp_path / "board")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"beats\n"
        wait_for(lambda: reader.pulse().beats >= 2)
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(0.05)  # a write that has begun still ends
        before = reader.pulse()
        time.sleep(0.6)  # more than two beats
        assert reader.pulse() == before
        process.kill()
    assert reader.lost_steps() == {"3-0", "4-1"}
    reader.close()


@pytest.mark.slow
def test_a_stopped_worker_is_reported_and_replaced(start_server):
    running = start_server("--draft", "none", "--worker-timeout", "8")
    before = running.post("/v1/completions", SHORT).json()["choices"][0]["text"]
    pid = running.invariants["worker_pid"]
    os.kill(pid, signal.SIGSTOP)
    answers = []
    asking = threading.Thread(
        target=lambda: answers.append(running.post("/v1/completions", SHORT, timeout=120).json())
    )
    asking.start()
    wait_for(lambda: running.get("/health").status_code == 503, within_s=10)
    assert "has not answered for" in running.get("/health").json()["error"]["message"]
    wait_for(lambda: running.get("/health").status_code == 200, within_s=60)
    asking.join(120)
    assert [each["choices"][0]["text"] for each in answers] == [before]
    assert running.invariants["worker_pid"] != pid
    assert "longer than --worker-timeout allows; killing it" in running.log.read_text()
    assert running.stop() == 0


@pytest.mark.slow
def test_a_worker_that_goes_on_in_time_is_kept(start_server):
    running = start_server("--draft", "none")
    pid = running.invariants["worker_pid"]
    os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: running.get("/health").status_code == 503)
    os.kill(pid, signal.SIGCONT)
    wait_for(lambda: running.get("/health").status_code == 200)
    assert running.invariants["worker_pid"] == pid
    assert running.stop() == 0
