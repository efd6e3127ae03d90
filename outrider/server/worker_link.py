"""One worker process and the socket to it, from its start to its end."""

import asyncio
import shutil
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from outrider.config.engine_config import EngineConfig
from outrider.errors import ConfigError
from outrider.server.worker_messages import (
    Down,
    Loading,
    News,
    Ready,
    StatsReply,
    Unable,
    Up,
    WorkerOrder,
    decode_up,
    encode,
)
from outrider.wire.runner_facts import RunnerFacts

OnProgress = Callable[[int, int], None]  # how many shapes are recorded, and of how many

_GOODBYE_S = 5.0
_LAST_WORDS_MS = 100  # after the end of the process all that it said lies in the socket already


class WorkerLink:
    """Owns a worker. Each has a socket of its own, so that nothing is left over from the last."""

    def __init__(
        self, process: Process, socket: zmq.asyncio.Socket, context: zmq.asyncio.Context, home: str
    ) -> None:
        self._process = process
        self._socket = socket
        self._context = context
        self._home = home
        self._exit = asyncio.ensure_future(process.wait())

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ready(self, on_progress: OnProgress) -> RunnerFacts:
        """Wait until the model is loaded; raises if it cannot be."""
        async for message in self._messages():
            if isinstance(message, Ready):
                return message.facts
            if isinstance(message, Loading):
                on_progress(message.done, message.total)
            elif isinstance(message, Unable):
                raise ConfigError(message.reason)
        code = await self._exit
        raise ConfigError(
            f"the engine's worker ended with code {code} before it was ready; see its messages"
        )

    def send(self, message: Down) -> None:
        """Say something; to a worker that has just ended, in vain."""
        sent = asyncio.ensure_future(self._socket.send(encode(message), flags=zmq.NOBLOCK))
        sent.add_done_callback(_settle)

    async def news(self) -> AsyncIterator[News | StatsReply]:
        """What the worker says until its process ends."""
        async for message in self._messages():
            assert isinstance(message, News | StatsReply), "it is loaded"
            yield message

    async def close(self) -> None:
        """End the worker, if it has not ended, and give everything back."""
        assert self._process.stdin is not None
        self._process.stdin.close()  # by which it knows
        try:
            await asyncio.wait_for(asyncio.shield(self._exit), _GOODBYE_S)
        except TimeoutError:
            self._process.kill()
            await self._exit
        self._context.destroy(linger=0)
        shutil.rmtree(self._home, ignore_errors=True)

    async def _messages(self) -> AsyncIterator[Up]:
        while True:
            incoming = asyncio.ensure_future(self._socket.recv())
            await asyncio.wait([incoming, self._exit], return_when=asyncio.FIRST_COMPLETED)
            if incoming.done():
                yield decode_up(incoming.result())
                continue
            incoming.cancel()
            while await self._socket.poll(_LAST_WORDS_MS):
                yield decode_up(await self._socket.recv())
            return


async def open_link(folder: Path, config: EngineConfig) -> WorkerLink:
    """Start a worker that loads this model."""
    home = tempfile.mkdtemp(prefix="outrider-")  # nobody else may enter it
    context = zmq.asyncio.Context()
    socket = context.socket(zmq.PAIR)
    socket.set_hwm(0)
    endpoint = f"ipc://{home}/engine"
    socket.bind(endpoint)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "outrider.server.worker_process",
        stdin=PIPE,
        stdout=DEVNULL,
        start_new_session=True,  # Ctrl-C is for the front, which tells the worker when it is time
    )
    assert process.stdin is not None
    order = WorkerOrder(folder=str(folder.resolve()), config=config, endpoint=endpoint)
    process.stdin.write(msgspec.json.encode(order) + b"\n")
    return WorkerLink(process, socket, context, home)


def _settle(sent: "asyncio.Future[Any]") -> None:
    """A message to a worker that is gone cannot be sent; the end of its process tells the rest."""
    if not sent.cancelled():
        sent.exception()
