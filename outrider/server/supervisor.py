"""The worker process as the server sees it: its start, its socket, and its replacement."""

import asyncio
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import msgspec
import zmq
import zmq.asyncio

from outrider.config.log_settings import LogSettings
from outrider.errors import ConfigError
from outrider.server.heartbeat import LOOK_S, Heartbeat, HeartbeatLimits
from outrider.server.worker_board import BoardReader
from outrider.server.worker_messages import (
    FromLoadedWorker,
    FromWorker,
    LoadFailed,
    LoadProgress,
    Ready,
    ToWorker,
    WorkerConfig,
    decode_from_worker,
    encode,
)
from outrider.server.worker_plans import WorkerPlan, without_draft_check
from outrider.wire.runner_facts import OnProgress, RankFacts, RunnerFacts

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 30.0  # between attempts to start a worker
_EXIT_S = 5.0  # that a worker has to end by itself
_DRAIN_MS = 100  # when the process has ended, all its messages are in the socket already

_log = logging.getLogger(__name__)


class WorkerListener(Protocol):
    """Receives what workers send. The async engine is one."""

    def attach_worker(
        self, send: Callable[[ToWorker], None], pid: int, ranks: tuple[RankFacts, ...]
    ) -> None:
        """A worker is ready; `ranks` are the processes that compute its model."""
        ...

    def receive(self, message: FromLoadedWorker) -> None: ...

    def note_trouble(self, reason: str) -> None:
        """Why the worker cannot answer now; empty if it can."""
        ...

    def detach_worker(self, lost_steps: frozenset[str]) -> None:
        """The worker has ended, and the steps with these requests are lost."""
        ...


class Supervisor:
    """Owns the current worker, and starts another one when it ends."""

    def __init__(
        self,
        folder: Path,
        plan: WorkerPlan,
        on_progress: OnProgress,
        *,
        limits: HeartbeatLimits,
        log: LogSettings,
        listener_fd: int | None = None,  # of the socket for other machines
    ) -> None:
        self._folder = folder
        self._plan = plan
        self._on_progress = on_progress
        self._limits = limits
        self._log = log
        self._listener_fd = listener_fd
        self._link: WorkerLink | None = None  # while there is no worker
        self._ranks: tuple[RankFacts, ...] = ()  # of the newest worker that was ready

    async def start(self) -> RunnerFacts:
        """Start the first worker and wait until its model is loaded; raises if that fails."""
        try:
            self._link = await open_link(self._folder, self._plan, self._log, self._listener_fd)
        except (OSError, zmq.ZMQError) as error:
            raise ConfigError(
                f"the engine's worker cannot be started ({error}); free memory, disk space, "
                "processes or open files"
            ) from error
        heartbeat = Heartbeat(self._limits, is_loading=True)
        try:
            with self._link.watched(heartbeat, ignore_trouble):
                facts = await self._link.ready(self._on_progress)
        except BaseException:
            await self.stop()
            raise
        # A later worker replaces one that died: requests wait for it, and its drafter is the same.
        self._plan = without_draft_check(self._plan)
        self._ranks = facts.memory.ranks
        _log_ranks(self._ranks)
        return facts

    def use_head(self, folder: str) -> None:
        """Later workers draft with the head in this folder."""
        draft = replace(self._plan.config.draft, drafter=folder)
        self._plan = replace(self._plan, config=replace(self._plan.config, draft=draft))

    async def run(self, listener: WorkerListener) -> None:
        """Pass on the messages of the worker, and of each later one, until cancelled."""
        while True:
            if self._link is not None:
                await self._follow(self._link, listener)
            await self.stop()
            await self._restart()

    async def _follow(self, link: "WorkerLink", listener: WorkerListener) -> None:
        """Pass on the messages of one worker until it ends."""
        listener.attach_worker(link.send, link.pid, self._ranks)
        heartbeat = Heartbeat(self._limits, is_loading=False)
        with link.watched(heartbeat, listener.note_trouble):
            async for message in link.messages():
                assert isinstance(message, FromLoadedWorker), "the model is loaded"
                listener.receive(message)
        listener.note_trouble("")
        _log.error("the engine's worker ended (%s); starting another", await link.ending())
        listener.detach_worker(link.lost_steps())

    async def stop(self) -> None:
        if self._link is not None:
            link, self._link = self._link, None
            await link.close()

    async def _restart(self) -> None:
        """Try until a worker is ready, with longer and longer pauses."""
        pause_s = _FIRST_PAUSE_S
        while self._link is None:
            try:
                await self.start()
            except ConfigError as error:
                _log.error("%s; trying again in %g s", error, pause_s)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


class WorkerLink:
    """Owns one worker process and a socket to it. No other worker ever uses the same socket."""

    def __init__(
        self, process: Process, socket: zmq.asyncio.Socket, board: BoardReader, held: ExitStack
    ) -> None:
        self._process = process
        self._socket = socket
        self._board = board
        self._held = held  # closes the socket and the board, and deletes their folder
        self._exit = asyncio.ensure_future(process.wait())

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ready(self, on_progress: OnProgress) -> RunnerFacts:
        """Wait until the model is loaded; raises if it cannot be loaded."""
        async for message in self.messages():
            if isinstance(message, Ready):
                return message.facts
            if isinstance(message, LoadProgress):
                on_progress(message.done, message.total)
            elif isinstance(message, LoadFailed):
                raise ConfigError(message.reason)
        raise ConfigError(
            f"the engine's worker ended ({await self.ending()}) before it was ready; "
            "see its messages"
        )

    def lost_steps(self) -> frozenset[str]:
        """The requests of the steps that were in flight when the worker ended."""
        return self._board.lost_steps()

    async def ending(self) -> str:
        """How the process ended; waits for the end."""
        code = await self._exit
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"

    @contextmanager
    def watched(self, heartbeat: Heartbeat, on_trouble: Callable[[str], None]) -> Iterator[None]:
        """Kill the worker if it hangs while the body runs; then `messages` ends."""
        watching = asyncio.create_task(self._watch(heartbeat, on_trouble))
        try:
            yield
        finally:
            watching.cancel()

    async def _watch(self, heartbeat: Heartbeat, on_trouble: Callable[[str], None]) -> None:
        trouble, looked_s = "", time.monotonic()
        while not heartbeat.is_hung:
            await asyncio.sleep(LOOK_S)
            now_s = time.monotonic()
            heartbeat.look(self._board.pulse(), after_s=now_s - looked_s)
            looked_s = now_s
            if heartbeat.trouble and not trouble:
                _log.warning("%s; /health answers 503", heartbeat.trouble)
            trouble = heartbeat.trouble
            on_trouble(trouble)
        _log.error("%s, longer than --worker-timeout allows; killing it", trouble)
        self._process.kill()

    def send(self, message: ToWorker) -> None:
        """Send a message. One to a worker that has just ended is lost."""
        sent = asyncio.ensure_future(self._socket.send(encode(message), flags=zmq.NOBLOCK))
        sent.add_done_callback(_ignore_failure)

    async def messages(self) -> AsyncIterator[FromWorker]:
        """The messages of the worker until its process ends."""
        while True:
            incoming = asyncio.ensure_future(self._socket.recv())
            await asyncio.wait([incoming, self._exit], return_when=asyncio.FIRST_COMPLETED)
            if incoming.done():
                yield decode_from_worker(incoming.result())
                continue
            incoming.cancel()
            while await self._socket.poll(_DRAIN_MS):
                yield decode_from_worker(await self._socket.recv())
            return

    async def close(self) -> None:
        """End the worker if it still runs, and free its socket and folder."""
        assert self._process.stdin is not None
        self._process.stdin.close()  # the sign for the worker to end
        try:
            await asyncio.wait_for(asyncio.shield(self._exit), _EXIT_S)
        except TimeoutError:
            self._process.kill()
            await self._exit
        self._held.close()


async def open_link(
    folder: Path, plan: WorkerPlan, log: LogSettings, listener_fd: int | None
) -> WorkerLink:
    """Start a worker that loads this model. If that fails, nothing is left of it."""
    with ExitStack() as held:
        home = Path(tempfile.mkdtemp(prefix="outrider-"))  # only this user may enter it
        held.callback(shutil.rmtree, home, ignore_errors=True)
        board = BoardReader(home / "board")
        held.callback(board.close)
        context = zmq.asyncio.Context()
        held.callback(context.destroy, linger=0)
        socket = context.socket(zmq.PAIR)
        socket.set_hwm(0)
        worker_config = WorkerConfig(
            folder=str(folder.resolve()),
            config=plan.config,
            endpoint=f"ipc://{home}/engine",
            board=str(home / "board"),
            log=log,
            listener_fd=listener_fd,
        )
        socket.bind(worker_config.endpoint)
        process = await _start_process(worker_config, plan.environment)
        return WorkerLink(process, socket, board, held.pop_all())


async def _start_process(worker_config: WorkerConfig, environment: Mapping[str, str]) -> Process:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "outrider.server.worker_process",
        stdin=PIPE,
        stdout=DEVNULL,
        pass_fds=[] if worker_config.listener_fd is None else [worker_config.listener_fd],
        env={**os.environ, **environment},
        start_new_session=True,  # Ctrl-C must reach the server only, which ends the worker later
    )
    assert process.stdin is not None
    process.stdin.write(msgspec.json.encode(worker_config) + b"\n")
    return process


def _log_ranks(ranks: tuple[RankFacts, ...]) -> None:
    """One line for each process, if there are several."""
    for each in ranks if len(ranks) > 1 else ():
        _log.info(
            "rank %d of %d: process %d on %s, device %s, weights %.3f GB, KV cache %.3f GB",
            *(each.rank, len(ranks), each.pid, each.host, each.device),
            *(each.weight_bytes / 1e9, each.kv_bytes / 1e9),
        )


def ignore_trouble(reason: str) -> None:
    """For a worker that loads its model: no client waits for its answers."""
    del reason


def _ignore_failure(sent: "asyncio.Future[Any]") -> None:
    """Ignore a message that could not be sent: the worker has ended, so `messages` ends, too."""
    if not sent.cancelled():
        sent.exception()
