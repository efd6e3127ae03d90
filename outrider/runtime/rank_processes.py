"""The other ranks of a group, as rank 0 sees them: their connections and their life."""

import contextlib
import logging
import os
import pickle
import queue
import subprocess
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

from outrider.config.early_ranks import WaitingRank
from outrider.config.process_state import is_stopped
from outrider.errors import CapacityError, ConfigError
from outrider.runtime.rank_messages import FromRank, RankFailed, RankJob, RankReady, RunStep
from outrider.wire.runner_facts import RankFacts
from outrider.wire.step_result import StepResult

# Without a sign of life while a model is loaded: Python may import from a slow disk for long.
_LOADING_S = 300.0
_EXPLAIN_S = 1.0  # after a failed collective, for the message that tells the reason
_LOOK_S = 0.2  # between two looks at a group that says nothing
# This process may be stopped itself. It must not blame the ranks for that time.
_LONGEST_LOOK_S = 5 * _LOOK_S
# A silent rank may hold its interpreter in one long call. One that a signal has stopped computes
# nothing, and the others wait for it.
_STOPPED_S = 2.0

_log = logging.getLogger(__name__)


class RankLink(Protocol):
    """Another rank as its owner holds it: on this machine or on another one."""

    @property
    def rank(self) -> int: ...

    @property
    def connection(self) -> "Connection[Any, Any]": ...

    @property
    def is_stopped(self) -> bool:
        """Whether a signal has stopped it. False if that cannot be known from here."""
        ...

    def kill(self) -> None:
        """End it. Any thread may call this."""
        ...

    def close(self) -> None:
        """Wait until it has ended, and free what belongs to it."""
        ...


def send_job(process: "subprocess.Popen[bytes]", job: RankJob) -> None:
    """Tell a rank what to compute. It is killed when this process ends."""
    assert process.stdin is not None, "Popen got stdin=PIPE"
    with contextlib.suppress(BrokenPipeError):  # it has ended, which its connection tells
        pickle.dump(job, process.stdin)
        process.stdin.flush()  # and it stays open: its end tells the rank that we ended


class RankProcess:
    """Owns a rank on this machine."""

    def __init__(self, job: RankJob, started: WaitingRank) -> None:
        self.rank = job.rank
        self._started = started
        send_job(started.process, job)
        fd = os.dup(started.connection.fileno())
        self.connection: Connection[RunStep, FromRank] = Connection(fd)

    @property
    def is_stopped(self) -> bool:
        return is_stopped(self._started.process.pid)

    def kill(self) -> None:
        self._started.process.kill()

    def close(self) -> None:
        self._started.close()
        self.connection.close()


class RankPeer:
    """One of the other ranks, as rank 0 follows it."""

    def __init__(self, link: RankLink) -> None:
        self.link = link
        self.rank = link.rank
        self.connection = link.connection
        self.silent_s = 0.0
        self.is_loading = True
        self.results: queue.SimpleQueue[StepResult] = queue.SimpleQueue()

    def note_silence(self, seconds: float) -> None:
        """Nothing was heard for so long, as far as this process could listen."""
        self.silent_s += min(seconds, _LONGEST_LOOK_S)

    def why_lost(self, timeout_s: float) -> str:
        """Why it counts as lost; empty while it does not."""
        if self.silent_s > _STOPPED_S and self.link.is_stopped:
            return f"rank {self.rank} is stopped, for {_STOPPED_S:g} s"
        limit_s = max(timeout_s, _LOADING_S) if self.is_loading else timeout_s
        if self.silent_s > limit_s:
            return f"rank {self.rank} gave no sign of life for {limit_s:g} s"
        return ""


class RankProcesses:
    """Owns the other ranks. The loss of one ends all: a group computes together or not at all."""

    def __init__(
        self, links: Sequence[RankLink], *, timeout_s: float, on_loss: Callable[[], None]
    ) -> None:
        self._peers = sorted(map(RankPeer, links), key=lambda peer: peer.rank)
        self._timeout_s = timeout_s
        self._on_loss = on_loss
        self._ready: queue.SimpleQueue[RankFacts] = queue.SimpleQueue()
        self._loss = ""  # why the group ended
        self._is_closing = threading.Event()
        self._end = weakref.finalize(self, _end_all, self._peers, self._is_closing)
        watcher = threading.Thread(target=_watch, args=(weakref.ref(self),), daemon=True)
        watcher.start()

    @property
    def loss(self) -> str:
        """Why the group ended; empty while all ranks live."""
        return self._loss

    def send(self, message: RunStep) -> None:
        """Encoded once for all ranks."""
        encoded = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
        try:
            for peer in self._peers:
                peer.connection.send_bytes(encoded)
        except OSError as error:
            raise CapacityError(self._loss or "a rank has ended") from error

    @property
    def size(self) -> int:
        """Ranks besides rank 0."""
        return len(self._peers)

    def send_to(self, rank: int, message: RunStep) -> None:
        try:
            self._peers[rank - 1].connection.send(message)
        except OSError as error:
            raise CapacityError(self._loss or "a rank has ended") from error

    def next_result(self, rank: int) -> StepResult:
        """The result of the oldest step of a rank that was not read yet."""
        while True:
            try:
                return self._peers[rank - 1].results.get(timeout=1.0)
            except queue.Empty:
                if self._loss:
                    raise CapacityError(self._loss) from None

    def wait_until_ready(self) -> tuple[RankFacts, ...]:
        """What the ranks hold, once every one has loaded its share of the model."""
        ready: list[RankFacts] = []
        while len(ready) < len(self._peers):
            try:
                ready.append(self._ready.get(timeout=_LOOK_S))
            except queue.Empty:
                if self._loss:
                    raise ConfigError(self._loss) from None
        for peer in self._peers:
            peer.silent_s, peer.is_loading = 0.0, False
        return tuple(sorted(ready, key=lambda each: each.rank))

    def explain(self, error: Exception) -> str:
        """Why a collective failed: the loss of a rank, if one is noticed soon, or the error."""
        end_s = time.monotonic() + _EXPLAIN_S
        while not self._loss and time.monotonic() < end_s:
            time.sleep(_LOOK_S / 10)
        return self._loss or " ".join(str(error).split())

    def close(self) -> None:
        self._end()

    def watch_once(self, wait_s: float) -> bool:
        """Read what the ranks tell; returns whether all of them live."""
        by_connection = {peer.connection: peer for peer in self._peers}
        before_s = time.monotonic()
        readable = wait(list(by_connection), timeout=wait_s)
        for peer in self._peers:
            peer.note_silence(time.monotonic() - before_s)
        for ready in readable:
            assert isinstance(ready, Connection), "only connections were passed"
            self._read(by_connection[ready])
        for reason in filter(None, (peer.why_lost(self._timeout_s) for peer in self._peers)):
            self._lose(reason)
        return not self._loss and not self._is_closing.is_set()

    def _read(self, peer: RankPeer) -> None:
        try:
            message = peer.connection.recv()
        except (EOFError, OSError):
            self._lose(f"rank {peer.rank} has ended; its own messages are above")
            return
        peer.silent_s = 0.0
        if isinstance(message, StepResult):
            peer.results.put(message)
        elif isinstance(message, RankReady):
            self._ready.put(message.facts)
        elif isinstance(message, RankFailed):
            self._lose(f"rank {peer.rank}: {message.reason}")

    def _lose(self, reason: str) -> None:
        """Kill all other ranks: a collective that waits for one of them then fails at once."""
        if self._loss or self._is_closing.is_set():
            return
        self._loss = reason
        _log.error("%s; all ranks end", reason)
        for peer in self._peers:
            peer.link.kill()
        if not any(peer.is_loading for peer in self._peers):  # else `wait_until_ready` raises
            self._on_loss()


def _watch(processes: "weakref.ref[RankProcesses]") -> None:
    """Watch without keeping the object alive: it ends the ranks when it is freed."""
    while (owner := processes()) is not None:
        if not owner.watch_once(wait_s=_LOOK_S):
            return
        del owner


def _end_all(peers: Sequence[RankPeer], is_closing: threading.Event) -> None:
    is_closing.set()
    for peer in peers:
        peer.link.kill()
    for peer in peers:
        peer.link.close()
