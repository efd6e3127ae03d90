"""The HTTP server of `outrider serve` in a process without a model."""

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from fastapi import FastAPI
from fastapi.responses import StreamingResponse

from outrider.server.http_server import HttpServer, ServerEvents, ServerTimeouts
from outrider.server.web_settings import WebSettings


@dataclass
class BareServer:
    """The HTTP server alone, in its own process."""

    process: subprocess.Popen[str]
    url: str


@contextmanager
def bare_server(*, client_s: float, grace_s: float, delay_s: float = 0.0) -> Iterator[BareServer]:
    """A running server with these timeouts."""
    command = [sys.executable, __file__, str(client_s), str(grace_s), str(delay_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield BareServer(process, process.stdout.readline().strip())
        process.kill()


def _app() -> FastAPI:
    app = FastAPI()

    @app.get("/health")
    async def health() -> dict[str, bool]:
        return {"is_leaving": "leaving" in stages, "is_draining": "draining" in stages}

    @app.get("/endless")
    async def endless() -> StreamingResponse:
        return StreamingResponse(_dots())

    return app


async def _dots() -> AsyncIterator[bytes]:
    while True:
        yield b"." * 1000
        await asyncio.sleep(0)


stages: list[str] = []

if __name__ == "__main__":
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    events = ServerEvents(
        ready=lambda: print(f"http://127.0.0.1:{port}", flush=True),
        leaving=lambda: stages.append("leaving"),
        draining=lambda: stages.append("draining"),
    )
    server = HttpServer(
        _app(),
        events,
        timeouts=ServerTimeouts(
            worker_s=1.0,
            client_s=float(sys.argv[1]),
            grace_s=float(sys.argv[2]),
            delay_s=float(sys.argv[3]),
        ),
        web=WebSettings(),
    )
    asyncio.run(server.serve([listener]))
