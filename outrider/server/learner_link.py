"""The process that trains the draft head, as the server sees it: its start, its socket, its end."""

import asyncio
import os
import shutil
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import zmq
import zmq.asyncio

from outrider.errors import ConfigError
from outrider.server.learner_messages import (
    FromLearner,
    LearnerConfig,
    LearnerReady,
    LearnerRefused,
    StopLearning,
    ToLearner,
    decode_from_learner,
    encode_learner,
)

_EXIT_S = 5.0  # that a learner has to end its small step


class LearnerLink:
    """Owns the process and a socket to it."""

    def __init__(self, process: Process, socket: zmq.asyncio.Socket, held: ExitStack) -> None:
        self._process = process
        self._socket = socket
        self._held = held  # closes the socket and deletes its folder
        self._exit = asyncio.ensure_future(process.wait())

    async def ready(self) -> None:
        """Wait until the head is loaded for training; raises if it cannot be trained."""
        async for message in self.messages():
            if isinstance(message, LearnerReady):
                return
            if isinstance(message, LearnerRefused):
                raise ConfigError(f"--learn: {message.reason}")
        raise ConfigError(
            f"--learn: the process that trains ended (exit code {await self._exit}) before it was "
            "ready; see its messages"
        )

    def send(self, message: ToLearner) -> None:
        """Send a message. One to a process that has ended is lost."""
        sent = asyncio.ensure_future(self._socket.send(encode_learner(message), flags=zmq.NOBLOCK))
        sent.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def messages(self) -> AsyncIterator[FromLearner]:
        """The messages of the process until it ends."""
        while True:
            incoming = asyncio.ensure_future(self._socket.recv())
            await asyncio.wait([incoming, self._exit], return_when=asyncio.FIRST_COMPLETED)
            if not incoming.done():
                incoming.cancel()
                return
            yield decode_from_learner(incoming.result())

    async def close(self) -> None:
        """End the process if it still runs. It writes whole folders, so it may also be killed."""
        self.send(StopLearning())
        try:
            await asyncio.wait_for(asyncio.shield(self._exit), _EXIT_S)
        except TimeoutError:
            self._process.kill()
            await self._exit
        self._held.close()


async def open_learner(config: LearnerConfig) -> LearnerLink:
    """Start the process. If that fails, nothing is left of it."""
    with ExitStack() as held:
        home = Path(tempfile.mkdtemp(prefix="outrider-"))  # only this user may enter it
        held.callback(shutil.rmtree, home, ignore_errors=True)
        context = zmq.asyncio.Context()
        held.callback(context.destroy, linger=0)
        socket = context.socket(zmq.PAIR)
        socket.set_hwm(0)  # the sender bounds the texts that are unread
        endpoint = f"ipc://{home}/learner"
        socket.bind(endpoint)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "outrider.train.learn_process"),
            stdin=PIPE,
            stdout=DEVNULL,
            env={**os.environ, "OMP_WAIT_POLICY": "passive"},  # its threads leave cores that wait
            start_new_session=True,  # Ctrl-C must reach the server only
        )
        assert process.stdin is not None
        placed = msgspec.structs.replace(config, endpoint=endpoint)
        process.stdin.write(msgspec.json.encode(placed) + b"\n")
        return LearnerLink(process, socket, held.pop_all())
