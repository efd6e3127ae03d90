"""Servers that die or stop in the middle of a transfer, under load: right answers, no lost page."""

import contextlib
import json
import os
import random
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import httpx
import pytest
from support.processes import wait_for_end
from support.role_servers import BODY, KEY, TEXT, assert_clean, free_port
from support.served import LONG_S, ServerProcess, wait_for
from support.side_relay import SideRelay

from outrider.config.role_checks import nixl_package

NUM, NUM_OTHERS = 50, 4
PAGE_BYTES = 8192  # of a connection: more than all messages about a prompt
MOMENTS = {
    # In the middle of the pages; answers about rooms go on and on over another connection.
    "tcp": lambda data, passed: passed > PAGE_BYTES and b'"states"' not in data,
    "nixl": lambda data, passed: b'"pages"' in data,  # the read begins when this has come
}


@dataclass
class Fleet:
    """Two decode servers of one prefill server. The first one talks to it by the relay."""

    prefill: ServerProcess
    decode: ServerProcess
    other: ServerProcess
    relay: SideRelay
    port: int  # of the prefill server's side channel
    restart: "callable"  # starts a server of a role again, on its old ports


def bodies(seed, num):
    """Prompts that share no page, and short answers."""
    rng = random.Random(seed)
    words = TEXT.split()
    return [
        {**BODY, "prompt": " ".join(rng.choices(words, k=50)), "seed": place}
        for place in range(num)
    ]


def stream(server, body):
    """The text of a streamed answer, and whether it came to its end."""
    text, is_whole = "", False
    with (
        contextlib.suppress(httpx.HTTPError),  # its server is killed
        httpx.stream(
            "POST", server.url + "/v1/completions", json={**body, "stream": True}, timeout=LONG_S
        ) as response,
    ):
        assert response.status_code == 200, response.read()
        for line in response.iter_lines():
            is_whole |= line == "data: [DONE]"
            if line.startswith("data: {"):
                text += "".join(each["text"] for each in json.loads(line[6:])["choices"])
    return text, is_whole


def send_both(fleet, decode, port, body):
    """As SGLang's routers do: both at once. The answer is the decode server's."""
    room = {"bootstrap_host": "127.0.0.1", "bootstrap_port": port}
    room["bootstrap_room"] = random.Random(json.dumps(body)).getrandbits(62)

    def prefill():
        with contextlib.suppress(httpx.HTTPError):
            fleet.prefill.post("/v1/completions", body | room)

    threading.Thread(target=prefill, daemon=True).start()
    return stream(decode, body | room)


def num_done(server):
    return server.invariants["transfers"]["total_done"]


def is_transferred(fleet, decode, port, body, single):
    """Whether the KV of a prompt came. The answer is right however that is."""
    before = num_done(decode)
    right = single.post("/v1/completions", body).json()["choices"][0]["text"]
    assert send_both(fleet, decode, port, body) == (right, True)
    return num_done(decode) == before + 1


def assert_transfers_work(fleet, single, seed):
    """On both decode servers; a server that was silent is not asked for some seconds."""
    for decode, port in ((fleet.decode, fleet.relay.port), (fleet.other, fleet.port)):
        asked = iter(bodies(f"{seed} {port}", 1000))
        wait_for(lambda: is_transferred(fleet, decode, port, next(asked), single))  # noqa: B023
        assert is_transferred(fleet, decode, port, next(asked), single)


@pytest.fixture(scope="module", name="fleet", params=["tcp", "nixl"])
def servers_of_one_backend(request, start):
    if request.param == "nixl" and not nixl_package():
        pytest.skip("pip install 'outrider[disagg]'")
    port, ports = free_port(), {"prefill": free_port(), "decode": free_port()}
    # Over TCP a read by NIXL needs the peer: one that is stopped does not end it.
    environment = {**KEY, "UCX_TLS": "tcp"}

    def restart(role):
        flags = ("--disaggregation-transfer-backend", request.param, "--port", str(ports[role]))
        if role == "decode":
            return start(role, *flags, environment=environment)
        # Prompts that no reader asks for any more hold their pages for 30 s.
        return start(role, *flags, "--kv-tokens", "65536", port=port, environment=environment)

    backend = ("--disaggregation-transfer-backend", request.param)
    other = start("decode", *backend, environment=environment)
    with contextlib.closing(SideRelay(port)) as relay:
        fleet = Fleet(restart("prefill"), restart("decode"), other, relay, port, restart)
        yield fleet
        assert_clean(fleet.prefill)  # once: leases without a reader lapse after 30 s


class Killed:
    """A worker that dies. Its server starts another, which goes on with its requests."""

    cuts_streams = False

    def __init__(self, fleet, role):
        self._worker = getattr(fleet, role).invariants["worker_pid"]

    def strike(self):
        os.kill(self._worker, signal.SIGKILL)

    def recover(self):
        wait_for_end(self._worker)


class Stopped(Killed):
    """A worker that says nothing for a while."""

    def strike(self):
        os.kill(self._worker, signal.SIGSTOP)

    def recover(self):
        with contextlib.suppress(ProcessLookupError):  # on a busy machine it was replaced meanwhile
            os.kill(self._worker, signal.SIGCONT)


class ServerKilled(Killed):
    """All processes of a server end, and it is started again."""

    def __init__(self, fleet, role):
        super().__init__(fleet, role)
        self._fleet, self._role = fleet, role
        self.cuts_streams = role == "decode"

    def strike(self):
        getattr(self._fleet, self._role).process.kill()

    def recover(self):
        getattr(self._fleet, self._role).process.wait()
        wait_for_end(self._worker)
        setattr(self._fleet, self._role, self._fleet.restart(self._role))


def assert_others_are_answered(fleet, role, single, seed):
    """Requests that need nothing of the lost server end while it is lost."""
    before = num_done(fleet.other) if role == "decode" else 0
    for body in bodies(f"others {seed}", NUM_OTHERS):
        right = single.post("/v1/completions", body).json()["choices"][0]["text"]
        if role == "decode":
            assert send_both(fleet, fleet.other, fleet.port, body) == (right, True)
        else:
            assert stream(fleet.decode, body) == (right, True)
    if role == "decode":
        assert num_done(fleet.other) == before + NUM_OTHERS


@pytest.mark.slow
@pytest.mark.timeout(280)
@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize("harm", [Killed, Stopped, ServerKilled])
def test_a_transfer_is_cut_under_load(fleet, servers, request, harm, role):
    single, seed = servers[2], request.node.name
    assert_transfers_work(fleet, single, f"before {seed}")
    asked, lost = bodies(seed, NUM), harm(fleet, role)
    with ThreadPoolExecutor(NUM) as threads:
        right = list(threads.map(lambda body: single.post("/v1/completions", body).json(), asked))
        fleet.relay.arm(lost.strike, MOMENTS[request.node.callspec.params["fleet"]])
        jobs = [
            threads.submit(send_both, fleet, fleet.decode, fleet.relay.port, body) for body in asked
        ]
        assert fleet.relay.has_struck.wait(LONG_S), "no transfer was under way"
        assert_others_are_answered(fleet, role, single, seed)
        if role == "prefill":
            wait_for(lambda: all(job.done() for job in jobs))  # although it is lost
        lost.recover()
        answers = [job.result() for job in jobs]
    for (text, is_whole), each in zip(answers, right, strict=True):
        whole = each["choices"][0]["text"]
        assert text == whole if is_whole else whole.startswith(text)
        assert is_whole or lost.cuts_streams
    assert_transfers_work(fleet, single, f"after {seed}")
    assert_clean(fleet.decode, fleet.other)
