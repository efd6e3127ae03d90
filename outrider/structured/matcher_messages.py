"""What a step asks of a matcher process, and how both sides write it to their socket.

Messages of steps are named tuples, which are pickled several times faster than dataclasses.
"""

import pickle
import socket
from dataclasses import dataclass
from typing import Any, NamedTuple

from outrider.wire.failure import RequestFailure

_SIZE_BYTES = 8
_READ_BYTES = 1 << 18
NO_ROW = -1  # in a slot: the process does not match a row now


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadGrammar:
    """The first message: the compiled grammar that the process matches."""

    text: str  # as xgrammar serializes it
    slot: int  # where the process writes which row it matches
    mask_rows: int  # of the shared memory
    mask_words: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarLoaded:
    """The answer to `LoadGrammar`."""

    pid: int
    load_s: float  # CPU time of loading


class RowTask(NamedTuple):
    """One row of a step: tokens that it emitted, then the tree whose nodes get masks."""

    row: int  # unique for each request, unlike a row of the device tables
    ends: tuple[int, ...]  # of a row that the process does not know yet; else empty
    emitted: list[int]
    tokens: list[int]  # of each node; -1 for a node that is absent
    parents: list[int]
    first: int  # the mask of node 0


class StepTasks(NamedTuple):
    """The rows of a step that have the grammar of this process."""

    tasks: list[RowTask]
    dropped: list[int]  # rows whose request has ended
    max_s: float  # CPU time for one row, beside an allowance for each node and token


FailedRows = dict[int, RequestFailure]  # the answer to `StepTasks`, by row


def send_message(channel: socket.socket, message: object) -> None:
    body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    channel.sendall(len(body).to_bytes(_SIZE_BYTES, "big") + body)


def receive_message(channel: socket.socket) -> Any:
    """The next message. Raises EOFError if the other side has ended."""
    data = bytearray(_receive_some(channel))  # the other side waits for an answer: nothing follows
    while len(data) < _SIZE_BYTES:
        data += _receive_some(channel)
    size = _SIZE_BYTES + int.from_bytes(data[:_SIZE_BYTES], "big")
    while len(data) < size:
        data += _receive_some(channel)
    return pickle.loads(memoryview(data)[_SIZE_BYTES:])


def _receive_some(channel: socket.socket) -> bytes:
    some = channel.recv(_READ_BYTES)
    if not some:
        raise EOFError("the other side has ended")
    return some
