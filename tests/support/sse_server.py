"""A small real HTTP server that streams scripted replies, for tests of HTTP clients.

It has no timers: a reply that must wait waits for other requests or for the client to leave.
"""

import asyncio
import json
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

MODELS = {"object": "list", "data": [{"id": "tiny", "object": "model"}]}
_REASONS = {200: "OK", 401: "Unauthorized", 404: "Not Found", 429: "Too Many Requests"}


def event(body: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def text_event(text: str, finish: str | None = None) -> bytes:
    return event({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]})


def usage_event(*, prompt: int, output: int, **more: Any) -> bytes:
    usage = {"prompt_tokens": prompt, "completion_tokens": output}
    return event({"choices": [], "usage": usage, **more})


DONE = b"data: [DONE]\n\n"


def cut(stream: bytes, seed: int) -> list[bytes]:
    """The same bytes, cut at arbitrary places."""
    generator = random.Random(seed)
    places = sorted(generator.sample(range(1, len(stream)), k=min(len(stream) - 1, 40)))
    return [stream[a:b] for a, b in zip([0, *places], [*places, len(stream)], strict=True)]


@dataclass(frozen=True, kw_only=True)
class Reply:
    """The reply to one request. `then` is what happens after its last piece."""

    pieces: list[bytes] = field(default_factory=list)
    status: int = 200
    content_type: str = "text/event-stream; charset=utf-8"
    headers: tuple[str, ...] = ()
    then: Literal["end", "drop", "hang"] = "end"
    after_requests: int = 0  # headers are sent once this many requests have come


@dataclass
class Seen:
    """What a client sent."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any


class SseServer:
    """Answers POSTs by a script, from a thread of its own."""

    def __init__(self, script: Callable[[int, Any], Reply]) -> None:
        self.script = script
        self.models: Reply = json_reply(MODELS)
        self.metrics: list[str] = []  # one text per scrape; the route exists only if there is one
        self.seen: list[Seen] = []
        self.hanging = threading.Semaphore(0)  # released by every request that hangs
        self.url = ""
        self._posts = 0
        self._changed = asyncio.Condition()

    async def serve(self, started: threading.Event, stop: asyncio.Event) -> None:
        self._changed = asyncio.Condition()
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        started.set()
        await stop.wait()
        server.close()

    async def _connection(self, reader: asyncio.StreamReader, writer: Any) -> None:
        try:
            while await self._exchange(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has left
        finally:
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: Any) -> bool:
        """Answer one request; returns whether the connection stays open."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.strip().split("\r\n")
        method, path, _ = first.split(" ")
        headers = {key.lower(): value for key, value in (line.split(": ", 1) for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        seen = Seen(method, path, headers, json.loads(body) if body else None)
        self.seen.append(seen)
        return await self._reply(await self._choose(seen), reader, writer)

    async def _choose(self, seen: Seen) -> Reply:
        if seen.path == "/metrics":
            text = [self.metrics.pop(0).encode()] if self.metrics else []
            return Reply(pieces=text, status=200 if text else 404, content_type="text/plain")
        if seen.method == "GET":
            return self.models
        number, self._posts = self._posts, self._posts + 1
        async with self._changed:
            self._changed.notify_all()
        return self.script(number, seen.body)

    async def _reply(self, reply: Reply, reader: asyncio.StreamReader, writer: Any) -> bool:
        async with self._changed:
            await self._changed.wait_for(lambda: self._posts >= reply.after_requests)
        lines = [
            f"HTTP/1.1 {reply.status} {_REASONS.get(reply.status, 'Other')}",
            f"Content-Type: {reply.content_type}",
            "Transfer-Encoding: chunked",
            *reply.headers,
        ]
        await _write(writer, "\r\n".join(lines).encode()[:20])  # headers come in parts, too
        await _write(writer, "\r\n".join(lines).encode()[20:] + b"\r\n\r\n")
        for piece in reply.pieces:
            await _write(writer, b"%x\r\n%s\r\n" % (len(piece), piece))
        if reply.then == "hang":
            self.hanging.release()
            await reader.read()  # returns when the client leaves
        if reply.then == "end":
            await _write(writer, b"0\r\n\r\n")
        return reply.then == "end"


async def _write(writer: Any, content: bytes) -> None:
    writer.write(content)
    await writer.drain()
    await asyncio.sleep(0)


def json_reply(body: Any, *, status: int = 200, headers: tuple[str, ...] = ()) -> Reply:
    return Reply(
        pieces=[json.dumps(body).encode()],
        status=status,
        content_type="application/json",
        headers=headers,
    )


@contextmanager
def sse_server(script: Callable[[int, Any], Reply]) -> Iterator[SseServer]:
    """The server while it runs; `script` maps the number of a POST and its body to a reply."""
    server, started = SseServer(script), threading.Event()
    loop, stop = asyncio.new_event_loop(), asyncio.Event()
    thread = threading.Thread(target=_run, args=(loop, server.serve(started, stop)))
    thread.start()
    try:
        assert started.wait(timeout=30), "the server did not start"
        yield server
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()


def _run(loop: asyncio.AbstractEventLoop, main: Any) -> None:
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(main)
