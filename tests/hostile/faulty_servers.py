"""Servers with faults: workers that are killed or stopped, clients that break off.

Requests beside them are answered right or end with an error of their own, health tells the truth,
and when all is over nothing is held: no rows, no pages, no memory, no processes.
"""

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import httpx
from support.load import resident_bytes
from support.served import wait_for

from hostile.parts import CaseReport
from hostile.rude_clients import draw_rudeness
from hostile.served_bytes import ByteServer

NUM_CLIENTS, NUM_ROUNDS, NUM_FAULTS = 4, 6, 6
RECOVERY_S = 120.0  # a stopped worker is replaced after 30 s, and loads the model again
TRUTH_S = 6.0  # health may be wrong for so long
KEPT_BYTES = 96 * 2**20  # that a server may hold more than before


def run_case(seed: int) -> CaseReport:
    """The life of one server."""
    rng, report = Random(seed), CaseReport()
    server = ByteServer("--max-queued", "64")
    try:
        _live(rng, server, report)
    finally:
        pids = _descendants(server.process.process.pid)
        _end(server, report)
    left = [pid for pid in pids if Path(f"/proc/{pid}").exists() and not _is_zombie(pid)]
    report.failures += [f"process {pid} outlives its server" for pid in left]
    return report


def _live(rng: Random, server: ByteServer, report: CaseReport) -> None:
    requests = [_draw_request(rng) for _ in range(NUM_CLIENTS * NUM_ROUNDS)]
    right = {index: _ask(server, body)[1] for index, body in enumerate(requests)}
    held = resident_bytes(server.process.process.pid)
    clients = [
        threading.Thread(target=_ask_all, args=(server, requests, right, first, report))
        for first in range(NUM_CLIENTS)
    ]
    for client in clients:
        client.start()
    rude = [_cause_trouble(rng, server, report) for _ in range(NUM_FAULTS)]
    for client in clients:
        client.join()
    for connections in rude:
        for connection in connections:
            connection.close()
    _check_rest(server, report, held)


def _draw_request(rng: Random) -> dict[str, object]:
    return {
        "prompt": "".join(rng.choices("abc the", k=rng.randint(1, 80))),
        "max_tokens": rng.choice([1, 30, 200]),
        "temperature": rng.choice([0.0, 1.0]),
        "seed": rng.getrandbits(31),
        "ignore_eos": True,
    }


def _ask(server: ByteServer, body: dict[str, object]) -> tuple[int, str]:
    url = f"{server.process.url}/v1/completions"
    response = httpx.post(url, json=body, timeout=RECOVERY_S)
    found = response.json()
    if response.status_code == 200:
        return 200, found["choices"][0]["text"]
    return response.status_code, found["error"]["message"]


def _ask_all(server: ByteServer, requests, right, first: int, report: CaseReport) -> None:
    """The well-behaved client: every answer it gets is right, every refusal has a reason."""
    for index in range(first, len(requests), NUM_CLIENTS):
        try:
            status, text = _ask(server, requests[index])
        except httpx.HTTPError as error:
            report.failures.append(f"request {index} was not answered: {error!r}")
            continue
        report.counts[f"status {status}"] += 1
        if status == 200 and text != right[index]:
            report.failures.append(f"request {index}: {text!a} instead of {right[index]!a}")
        elif status == 500 and "the last alone" in text:
            report.counts["ended as suspect"] += 1  # all kills hit the step that it was alone in
        elif status != 200 and (status != 503 or not text):
            report.failures.append(f"request {index}: status {status} {text}")


def _cause_trouble(rng: Random, server: ByteServer, report: CaseReport):
    """One fault; returns the connections that it leaves open."""
    time.sleep(rng.uniform(0, 1.0))
    kinds = ["kill", "kill", "pause", *["clients"] * 4]
    kind = rng.choice([*kinds, *([] if report.counts["fault stop"] else ["stop"])])
    report.counts[f"fault {kind}"] += 1
    if kind == "clients":
        return [draw_rudeness(rng, server.process.url)[1] for _ in range(rng.choice([1, 20]))]
    pid = _await_worker(server)
    os.kill(pid, signal.SIGKILL if kind == "kill" else signal.SIGSTOP)
    if kind == "pause":
        time.sleep(rng.uniform(0, 2))
        os.kill(pid, signal.SIGCONT)
        _wait_until(lambda: _is_healthy(server), report, "/health is 200 again")
        return []
    if kind == "stop":
        _check_health_tells(server, report)
    _wait_until(lambda: _worker(server) not in (0, pid), report, "another worker runs")
    return []


def _await_worker(server: ByteServer) -> int:
    """The process id of the worker, once there is one. Never 0: that is our own group to `kill`."""
    end = time.monotonic() + RECOVERY_S
    while not (pid := _worker(server)):
        assert time.monotonic() < end, "there is no worker any more"
        time.sleep(0.1)
    return pid


def _worker(server: ByteServer) -> int:
    """The process id of the worker; 0 while there is none. A stopped one delays the answer."""
    return int(_invariants(server).get("worker_pid", 0))


def _invariants(server: ByteServer) -> dict[str, Any]:
    """Empty while there is no worker."""
    response = server.process.get("/invariants", timeout=RECOVERY_S)
    return response.json() if response.status_code == 200 else {}


def _is_healthy(server: ByteServer) -> bool:
    return server.process.get("/health").status_code == 200


def _check_health_tells(server: ByteServer, report: CaseReport) -> None:
    """The worker does not answer: health must say so, and soon."""
    end = time.monotonic() + TRUTH_S
    while time.monotonic() < end:
        if not _is_healthy(server):
            return
        time.sleep(0.1)
    report.failures.append(f"the worker is stopped, and /health says nothing after {TRUTH_S} s")


def _wait_until(holds: Callable[[], bool], report: CaseReport, what: str) -> None:
    try:
        wait_for(holds, within_s=RECOVERY_S)
    except AssertionError:
        report.failures.append(f"after {RECOVERY_S:.0f} s it does not hold: {what}")


def _check_rest(server: ByteServer, report: CaseReport, held: int) -> None:
    """What is in use when all clients are gone."""
    _wait_until(lambda: _invariants(server).get("is_idle", False), report, "the server is idle")
    if _invariants(server).get("has_leak", True):
        report.failures.append(f"a leak: {_invariants(server)}")
    if server.ask_known() != server.right_answer:
        report.failures.append("a known request is answered differently afterwards")
    pid = server.process.process.pid
    end = time.monotonic() + 10
    while resident_bytes(pid) - held > KEPT_BYTES and time.monotonic() < end:
        time.sleep(0.5)
    if (kept := resident_bytes(pid) - held) > KEPT_BYTES:
        report.failures.append(f"the server holds {kept / 2**20:.0f} MiB more than before")


def _end(server: ByteServer, report: CaseReport) -> None:
    code = server.process.stop()
    if code:
        report.failures.append(f"the server ends with {code}: {server.new_tracebacks()}")


def _descendants(pid: int) -> list[int]:
    """All processes below one."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            found += [child, *_descendants(child)]
    return found


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
