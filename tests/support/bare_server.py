"""The HTTP server of `outrider serve` in a process without a model: `python -m` this, on a port."""

import asyncio
import socket
import sys
from collections.abc import AsyncIterator

from fastapi import FastAPI
from fastapi.responses import StreamingResponse

from outrider.server.http_server import HttpServer, ServerEvents
from outrider.server.web_settings import WebSettings


def _app() -> FastAPI:
    app = FastAPI()

    @app.get("/health")
    async def health() -> dict[str, bool]:
        return {"is_draining": bool(draining)}

    @app.get("/endless")
    async def endless() -> StreamingResponse:
        return StreamingResponse(_dots())

    return app


async def _dots() -> AsyncIterator[bytes]:
    while True:
        yield b"." * 1000
        await asyncio.sleep(0)


draining: list[bool] = []

if __name__ == "__main__":
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    events = ServerEvents(
        ready=lambda: print(f"http://127.0.0.1:{port}", flush=True),
        draining=lambda: draining.append(True),
    )
    server = HttpServer(
        _app(),
        events,
        client_timeout_s=float(sys.argv[1]),
        grace_s=float(sys.argv[2]),
        web=WebSettings(),
    )
    asyncio.run(server.serve([listener]))
