"""The side channel against relays, old readers and a system without file numbers or threads."""

import errno
import socket
import threading
import time
from contextlib import suppress
from dataclasses import replace

import pytest
from support.engines import Shape, engine_of, run_all
from support.role_traces import submissions, traces
from support.roles import KEY, pair_of

from outrider.disaggregation.prefill_server import PrefillServer
from outrider.disaggregation.side_channel import open_channel
from outrider.disaggregation.tcp_pages import TcpSource
from outrider.runtime.draft_kinds import NoDraft
from outrider.runtime.node_connection import connect
from outrider.wire.transfer_order import TransferOrder

LONG_S = 60.0
CHANGED_BYTE = 2000  # of what the prefill engine sends: in the middle of page bytes


@pytest.fixture(name="pair")
def pair_of_engines(models):
    with pair_of(models.target, NoDraft()) as pair:
        yield pair


def ask(port):
    opened = connect(("127.0.0.1", port), KEY, time.monotonic() + LONG_S)
    channel = open_channel(opened, KEY, "decode", stall_s=LONG_S)
    assert channel.ask({"facts": {}}) == {"refused": ""}
    return channel


def pump(source, sink, changed_byte):
    """Relay all bytes until an end leaves; one of them is another one afterwards."""
    passed = 0
    with suppress(OSError):  # an end may leave at any time
        while data := bytearray(source.recv(65536)):
            if passed <= changed_byte < passed + len(data):
                data[changed_byte - passed] ^= 0x40
            passed += len(data)
            sink.sendall(data)
    for end in (source, sink):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def relay(listener, port, changed_byte):
    """Stand between the engines without the secret: the handshake is passed on."""
    with suppress(OSError):
        while True:
            decode, prefill = listener.accept()[0], socket.create_connection(("127.0.0.1", port))
            for ends in ((decode, prefill, 2**62), (prefill, decode, changed_byte)):
                threading.Thread(target=pump, args=ends, daemon=True).start()


@pytest.mark.parametrize("changed_byte", [CHANGED_BYTE, 2**62])
def test_a_relay_changes_nothing(models, pair, changed_byte):
    (one,) = submissions()[2:]
    right = traces(engine_of(models.target, Shape()), [one])["r2"][0]
    pair.offer(one, "room")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        between = threading.Thread(target=relay, args=(listener, pair.port, changed_byte))
        between.start()
        port = listener.getsockname()[1]
        order = TransferOrder(kind="fetch", room="room", host="127.0.0.1", port=port)
        output = run_all(pair.decode.engine, [replace(one, transfer=order)])["r2"]
        assert output.tokens == right
        assert output.last.progress.cached == (0 if changed_byte == CHANGED_BYTE else 28)
        listener.shutdown(socket.SHUT_RDWR)
        between.join(LONG_S)
        assert not between.is_alive()


def test_a_peer_that_sends_byte_by_byte_is_given_up(pair, monkeypatch):
    """Each byte comes in time, and the message does not."""
    opened = connect(("127.0.0.1", pair.port), KEY, time.monotonic() + LONG_S)
    channel = open_channel(opened, KEY, "decode", stall_s=0.3)
    slow, peer = socket.socketpair()
    monkeypatch.setattr(opened, "socket", slow)
    is_over, has_begun = threading.Event(), threading.Event()

    def drip():
        peer.send((2**20).to_bytes(4, "big"))  # so many bytes are promised
        while not is_over.wait(0.02):
            peer.send(b"x")
            has_begun.set()

    sender = threading.Thread(target=drip)
    sender.start()
    assert has_begun.wait(LONG_S)
    with pytest.raises(TimeoutError, match="no whole message in time"):
        channel.receive()
    is_over.set()
    sender.join(LONG_S)
    for end in (slow, peer, opened):
        end.close()


def test_an_old_reader_cannot_end_a_new_offer(pair):
    (one,) = submissions()[2:]
    pair.offer(one, "room")
    channel = ask(pair.port)
    old = channel.ask({"kind": "state", "room": "room"})
    about = {"room": "room", "nonce": old["nonce"]}
    pair.prefill.engine._pending.role.drop()
    pair.offer(one, "room")
    assert channel.ask({"kind": "hold", **about}) == {"is_held": False}
    assert channel.ask({"kind": "read", "first": 0, **about}) == {"is_held": False}
    assert channel.ask({"kind": "row", **about}) == {"is_held": False}
    assert channel.ask({"kind": "confirm", **about}) == {"is_held": False}
    new = channel.ask({"kind": "state", "room": "room"})
    about["nonce"] = new["nonce"]
    assert channel.ask({"kind": "confirm", **about}) == {"is_held": True}
    channel.close()
    pair.assert_no_leak()


class FailingListener(socket.socket):
    """The first connection cannot be accepted."""

    failures = (OSError(errno.EMFILE, "Too many open files"),)

    def accept(self):
        for failure in self.failures:
            self.failures = ()
            raise failure
        return super().accept()


def server_of(pair, listener):
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    source = TcpSource(pair.prefill.pages, pair.board)
    server = PrefillServer(listener, KEY, board=pair.board, source=source, facts={})
    server.start()
    return server


def test_a_connection_that_cannot_be_accepted_is_not_the_end(pair):
    server = server_of(pair, FailingListener())
    ask(server.port).close()
    server.close()


def test_a_thread_that_cannot_start_gives_its_place_back(pair, monkeypatch):
    server = server_of(pair, socket.socket())
    start, failures = threading.Thread.start, iter([RuntimeError("can't start new thread")])

    def fail_once(thread):
        for failure in failures:
            raise failure
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", fail_once)
    with socket.create_connection(("127.0.0.1", server.port)) as refused:
        refused.settimeout(LONG_S)
        assert refused.recv(1) == b""
    monkeypatch.undo()
    assert server._strangers._value == 128
    ask(server.port).close()
    server.close()
