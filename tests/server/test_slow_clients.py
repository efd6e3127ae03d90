"""Clients that send half a request or read nothing are cut off, and hold no signal to end."""

import json
import os
import signal
import socket
import threading
import time

import httpx
import pytest
from support.bare_server import bare_server
from support.processes import wait_for_end
from support.served import wait_for

LONG = {"prompt": "the", "max_tokens": 3000, "ignore_eos": True, "model": "tiny"}
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"


@pytest.fixture
def bare():
    """It waits for clients for half a second, and has a grace period of one."""
    with bare_server(client_s=0.5, grace_s=1) as running:
        yield running


@pytest.fixture(scope="module")
def impatient(start_server):
    """A server that waits for its clients for a second."""
    flags = ("--draft", "none", "--client-timeout", "1", "--shutdown-grace", "2")
    running = start_server(*flags)
    yield running
    running.stop()


def connect(server, sent=b""):
    host, port = server.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)))
    connection.settimeout(30)
    connection.sendall(sent)
    return connection


def open_stream(server, **more):
    """A stream that is never read, with a small receive buffer."""
    content = json.dumps({**LONG, "stream": True, **more}).encode()
    host, port = server.url.removeprefix("http://").split(":")
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect((host, int(port)))
    connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(content) + content)
    assert connection.recv(12) == b"HTTP/1.1 200"
    return connection


def drip(connection, part):
    """Send a little again and again; returns when the connection is cut off."""
    try:
        for _ in range(600):
            connection.sendall(part)
            time.sleep(0.05)
    except OSError:  # a reset or a broken pipe
        return
    raise AssertionError("the connection was never cut off")


def test_half_a_head_is_answered_with_408_and_a_silent_client_is_cut_off(bare):
    with connect(bare) as silent, connect(bare, b"GET /health HTTP/1.1\r\n") as half:
        assert half.recv(99).startswith(b"HTTP/1.1 408")
        assert silent.recv(99) == b""
    assert httpx.get(f"{bare.url}/health").json()["is_draining"] is False


def test_a_signal_ends_the_server_in_its_grace_though_a_client_never_reads(bare):
    with connect(bare, b"GET /endless HTTP/1.1\r\nHost: a\r\n\r\n") as mute:
        assert mute.recv(12) == b"HTTP/1.1 200"
        bare.process.send_signal(signal.SIGTERM)
        wait_for(lambda: httpx.get(f"{bare.url}/health").json()["is_draining"])
        assert bare.process.wait(20) == 0


@pytest.mark.slow
def test_a_client_that_never_reads_is_cut_off_without_a_signal(bare):
    with connect(bare, b"GET /endless HTTP/1.1\r\nHost: a\r\n\r\n") as mute:
        time.sleep(3)
        read = b""
        with pytest.raises(ConnectionResetError):  # noqa: PT012
            while part := mute.recv(2**20):
                read += part
            raise ConnectionResetError  # an end without the last chunk is a cut, too
        assert not read.endswith(b"0\r\n\r\n")


@pytest.mark.slow
def test_a_head_that_never_ends_is_cut_off_though_bytes_arrive(impatient):
    half = connect(impatient, b"GET /health HTTP/1.1\r\n")
    drip(half, b"x-more: y\r\n")
    assert impatient.get("/health").status_code == 200


@pytest.mark.slow
def test_a_connection_with_quick_requests_is_kept(impatient):
    with httpx.Client(base_url=impatient.url) as client:
        for _ in range(8):  # longer than the limit in all, and every request is whole
            assert client.get("/health").status_code == 200
            time.sleep(0.2)


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/v1/completions", "/health", "/none"])
def test_a_body_that_never_ends_is_cut_off_whatever_the_route(impatient, path):
    head = HEAD.replace(b"/v1/completions", path.encode())
    dripping = connect(impatient, head + b"Content-Length: 5000\r\n\r\n")
    drip(dripping, b"x")


@pytest.mark.slow
def test_150_half_sent_heads_are_all_cut_off(impatient):
    half = [connect(impatient, b"GET /health HTTP/1.1\r\nHost: a\r\n") for _ in range(150)]
    for each in half:
        while each.recv(99):
            pass
    assert impatient.get("/health").status_code == 200
    assert "the client did not send the head of a request" in impatient.log.read_text()


@pytest.mark.slow
def test_a_stream_that_is_not_read_is_cut_off_and_its_request_ends(impatient):
    with open_stream(impatient, logprobs=20):
        wait_for(lambda: impatient.invariants["open_calls"] == 1)
        wait_for(lambda: impatient.invariants["open_calls"] == 0)
    assert not impatient.wait_until_idle()["has_leak"]
    assert "the client did not read its answer" in impatient.log.read_text()


@pytest.mark.slow
def test_a_signal_ends_the_server_within_its_grace_whatever_clients_do(impatient):
    """The last test with this server: it ends it."""
    worker = impatient.invariants["worker_pid"]
    streams = [open_stream(impatient, logprobs=20) for _ in range(2)]
    connect(impatient, b"GET /health HTTP/1.1\r\n")
    impatient.terminate()
    with httpx.Client(base_url=impatient.url) as client:
        wait_for(lambda: client.get("/health").status_code == 503)
        assert client.get("/health").json()["error"]["code"] == "shutting_down"
        assert client.post("/v1/completions", json={**LONG, "max_tokens": 1}).status_code == 503
    assert impatient.process.wait(20) == 0
    wait_for_end(worker)
    assert "Traceback" not in impatient.log.read_text()
    for each in streams:
        each.close()


@pytest.mark.slow
def test_a_signal_while_the_worker_is_stopped_ends_in_time(start_server):
    running = start_server("--draft", "none", "--shutdown-grace", "2")
    worker = running.invariants["worker_pid"]
    os.kill(worker, signal.SIGSTOP)
    asking = threading.Thread(target=ask, args=[running])
    asking.start()
    time.sleep(0.5)
    running.terminate()
    assert running.process.wait(30) == 0
    asking.join(120)
    wait_for_end(worker)


def ask(running):
    with pytest.raises(httpx.HTTPError):
        running.post("/v1/completions", LONG)
