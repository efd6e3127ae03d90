"""Random bytes and messages on the side channel, from strangers and from peers with the secret."""

import json
import random
import socket
import struct
import threading
import time
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace

import pytest
from hostile.odd_values import damage_json, odd_value
from support.engines import Shape, engine_of, run_all
from support.processes import wait_until
from support.role_traces import submissions, traces
from support.roles import KEY, pair_of

from outrider.disaggregation import offer_watch, prefill_server, side_channel
from outrider.disaggregation.session_tags import NONCE_BYTES, TAG_BYTES
from outrider.disaggregation.side_channel import open_channel
from outrider.runtime import node_connection
from outrider.runtime.draft_kinds import NoDraft
from outrider.runtime.node_connection import authenticate, connect
from outrider.wire.transfer_order import TransferOrder

LONG_S = 60.0
NUM_CASES = 100
KINDS = ("watch", "watch", "state", "hold", "confirm", "row", "read", "offer", "")


@pytest.fixture(name="pair")
def pair_of_engines(models):
    with pair_of(models.target, NoDraft()) as pair:
        yield pair


def assert_room_is_there(models, pair, one):
    """What was sent has changed nothing: the KV is read, and the answer is right."""
    right = traces(engine_of(models.target, Shape()), [one])["r2"][0]
    output = run_all(pair.decode.engine, [pair.fetched(one, "room")])["r2"]
    assert (output.tokens, output.last.progress.cached) == (right, 28)
    pair.assert_no_leak()


@contextmanager
def other_end_may_leave():
    """It closes at the first wrong byte, before or while the rest is sent; but it must not hang."""
    try:
        yield
    except TimeoutError:
        raise
    except OSError:
        pass


def read_to_the_end(link):
    link.settimeout(LONG_S)
    link.shutdown(socket.SHUT_WR)
    while link.recv(65536):
        pass


def frame(rng, data):
    """A message in the form of multiprocessing, whose size may be a lie."""
    size = rng.choice(
        [len(data), len(data), 0, -1, 2**31 - 1, 2**22 + TAG_BYTES, rng.getrandbits(30)]
    )
    return struct.pack("!i", size) + data


@pytest.mark.parametrize("seed", range(2))
def test_strangers_get_nowhere(models, pair, seed):
    rng, (one,) = random.Random(seed), submissions()[2:]
    pair.offer(one, "room")
    for _ in range(NUM_CASES):
        address = ("127.0.0.1", pair.port)
        with socket.create_connection(address) as stranger, other_end_may_leave():
            for _ in range(rng.randrange(3)):
                data = rng.randbytes(rng.choice([0, 1, 20, 64, 5000]))
                stranger.sendall(data if rng.random() < 0.5 else frame(rng, data))
            read_to_the_end(stranger)
    assert_room_is_there(models, pair, one)


@pytest.mark.parametrize("has_secret", [False, True])
def test_a_stranger_that_sends_byte_by_byte_is_given_up(pair, monkeypatch, has_secret):
    """Every byte comes in time, and the handshake does not."""
    monkeypatch.setattr(node_connection, "AUTHENTICATE_S", 0.3)
    monkeypatch.setattr(side_channel, "AUTHENTICATE_S", 0.3)
    monkeypatch.setattr(prefill_server, "AUTHENTICATE_S", 0.3)
    address, is_over = ("127.0.0.1", pair.port), threading.Event()
    if has_secret:  # up to its random number
        opened = connect(address, KEY, time.monotonic() + LONG_S)
        stranger, promised = opened.socket, NONCE_BYTES
    else:
        stranger, promised = socket.create_connection(address), 200
    stranger.sendall(struct.pack("!i", promised))
    sent = 0
    with closing(stranger), suppress(OSError):  # the other end closes it
        while sent < 20 and not is_over.wait(0.1):
            sent += stranger.send(b"x")
    assert sent < 20
    wait_until(lambda: pair.server._strangers._value == 128)


def test_strangers_take_no_place_of_peers(pair):
    (one,) = submissions()[2:]
    pair.offer(one, "room")
    run_all(pair.decode.engine, [pair.fetched(one, "room")])  # its connections are open now
    address = ("127.0.0.1", pair.port)
    with ExitStack() as held:
        for _ in range(150):  # more than the quota, and silent
            held.enter_context(closing(socket.create_connection(address)))
        wait_until(lambda: pair.server._strangers._value == 0)
        pair.decode.engine.flush()
        pair.offer(one, "again")
        again = replace(one, request_id="again")
        output = run_all(pair.decode.engine, [pair.fetched(again, "again")])["again"]
        assert output.last.progress.cached == 28
    pair.assert_no_leak()


def odd_message(rng):
    """Bytes of a message: nearly right, or anything."""
    rooms = ["room", "room", "", 7, None, "r" * 5000]
    message = {
        "kind": rng.choice(KINDS),
        "room": rng.choice(rooms),
        "nonce": rng.randbytes(16).hex(),
    }
    message |= rng.choice(
        [{}, {"first": rng.choice([0, 1, -1, 8, 10**30, float("inf"), "0", None])}]
    )
    lists = [[], ["room"], rooms, rooms * 400, "room", None]
    message |= {"rooms": rng.choice(lists), "held": rng.choice(lists)}
    what = rng.random()
    if what < 0.5:
        return json.dumps(message).encode()
    if what < 0.8:
        return json.dumps(damage_json(rng, message)[0]).encode()
    if what < 0.9:
        return json.dumps(odd_value(rng)).encode()
    return rng.choice([b"", b"{", b"[" * 100_000, rng.randbytes(500), b"9" * 5000])


@pytest.mark.parametrize("seed", range(2))
def test_odd_messages_of_a_peer_with_the_secret_end_its_connection_alone(
    models, pair, seed, caplog
):
    rng, (one,) = random.Random(seed), submissions()[2:]
    pair.offer(one, "room")
    asked = []
    for _ in range(NUM_CASES):
        opened = connect(("127.0.0.1", pair.port), KEY, time.monotonic() + LONG_S)
        with closing(open_channel(opened, KEY, "decode", stall_s=LONG_S)) as channel:
            is_greeted = rng.random() < 0.8
            if is_greeted:
                assert channel.ask({"facts": {}}) == {"refused": ""}
            asked.append(odd_message(rng))
            with other_end_may_leave():
                channel.send_bytes(asked[-1])
                if rng.random() < 0.2:
                    opened.socket.sendall(frame(rng, rng.randbytes(100)))
                read_to_the_end(opened.socket)
    assert pair.board.state("room") == "offered", "a message ended the offer"
    assert not [each for each in caplog.records if each.levelname == "ERROR"], asked
    wait_until(lambda: pair.server._room._value == 1024)  # no connection is held
    assert_room_is_there(models, pair, one)


class OddPrefill:
    """Owns a listener whose connections know the secret, and answer anything."""

    def __init__(self, seed):
        self._rng = random.Random(seed)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        with suppress(OSError):
            while True:
                link, _ = self._listener.accept()
                threading.Thread(target=self._converse, args=(link,), daemon=True).start()

    def _converse(self, link):
        with suppress(OSError):
            self._answer(open_channel(authenticate(link, KEY), KEY, "prefill", stall_s=5))

    def _answer(self, channel):
        channel.receive()
        channel.send({"refused": self._rng.choice(["", "", "", 3, ["no"]])})
        while True:
            message = channel.receive()
            offer = {"state": "offered", "nonce": "0", "digest": "0", "num_tokens": 28}
            offer["pages"] = [*range(7)]
            answers = {
                "state": offer,
                "watch": {"states": ["offered"] * len(message.get("rooms", ()))},
            }
            right = answers.get(message["kind"], {"is_held": True, "num_bytes": 8})
            odd = damage_json(self._rng, right)[0] if self._rng.random() < 0.7 else right
            channel.send_bytes(json.dumps(odd).encode())
            if self._rng.random() < 0.3:
                channel.send_bytes(self._rng.randbytes(64))

    def close(self):
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.mark.parametrize("seed", range(3))
def test_odd_answers_of_a_prefill_engine_end_in_computing_here(models, pair, seed, monkeypatch):
    monkeypatch.setattr(offer_watch, "_UNKNOWN_S", 0.05)
    (one,) = submissions()[2:]
    right = traces(engine_of(models.target, Shape()), [one])["r2"][0]
    engine = pair.decode.engine
    for case in range(8):
        with closing(OddPrefill(f"{seed} {case}")) as prefill:
            room = TransferOrder(kind="fetch", room="room", host="127.0.0.1", port=prefill.port)
            output = run_all(engine, [replace(one, transfer=room)])["r2"]
        assert (output.tokens, output.last.progress.cached) == (right, 0), f"{seed} {case}"
        engine.flush()
    pair.assert_no_leak()
