"""A file in which a worker notes its progress; readable while the worker hangs or after it died."""

import logging
import os
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

BEAT_S = 0.25  # between two beats

# [0, 16)    beats and loops
# [16, 20)   bytes of the ids that follow
# [20, ..)   ids of the requests of all steps in flight, as msgpack
_PULSE = struct.Struct("<QQ")
_LENGTH = struct.Struct("<I")

_log = logging.getLogger(__name__)


class Pulse(NamedTuple):
    """Two counters. Beats stand still if the process is stopped, loops if one step hangs."""

    beats: int
    loops: int


class WorkerBoard:
    """Owns the worker's end of the file, and the thread that writes beats."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self._num_beats = 0
        self._num_loops = 0
        self._in_flight: tuple[str, ...] = ()
        self._is_loading = False

    def start(self) -> None:
        """Beat from now on, until the process ends."""
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()

    def note_loop(self) -> None:
        """The step loop has come around."""
        self._num_loops += 1

    @contextmanager
    def loading(self) -> Iterator[None]:
        """While the body runs, the step loop stands still for a good reason."""
        self._is_loading = True
        try:
            yield
        finally:
            self._is_loading = False

    def write_steps(self, request_ids: tuple[str, ...]) -> None:
        """Note the requests of all steps in flight, before the newest of the steps is submitted.

        A write to a file survives SIGKILL. A message may still be in this process then.
        """
        if request_ids == self._in_flight:
            return
        self._in_flight = request_ids
        ids = msgspec.msgpack.encode(request_ids)
        os.pwrite(self._file, _LENGTH.pack(len(ids)) + ids, _PULSE.size)

    def _beat(self) -> None:
        pause = threading.Event()
        while not pause.wait(BEAT_S):
            self._num_beats += 1
            self._num_loops += self._is_loading
            os.pwrite(self._file, _PULSE.pack(self._num_beats, self._num_loops), 0)


class BoardReader:
    """Owns the server's end of the file."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)

    def pulse(self) -> Pulse:
        return Pulse(*_PULSE.unpack(self._read(_PULSE.size, at=0)))

    def lost_steps(self) -> frozenset[str]:
        """The requests of the steps that were in flight when the worker ended."""
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size, at=_PULSE.size))
        if not length:
            return frozenset()
        ids = os.pread(self._file, length, _PULSE.size + _LENGTH.size)
        try:
            return msgspec.msgpack.decode(ids, type=frozenset[str])
        except msgspec.DecodeError:
            _log.warning("the worker died while it noted its step; no request is suspected")
            return frozenset()

    def _read(self, size: int, *, at: int) -> bytes:
        """What the worker has not written yet is 0."""
        return os.pread(self._file, size, at).ljust(size, b"\0")

    def close(self) -> None:
        os.close(self._file)
