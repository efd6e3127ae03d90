"""One request over HTTP: sends it, reads its stream, and returns the outcome."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import aiohttp

from outrider.bench.serve.request_outcome import (
    AnswerTokens,
    Failure,
    Outcome,
    ServerAnswer,
    Timeline,
)
from outrider.bench.serve.serve_args import Endpoint
from outrider.bench.serve.server_acceptance import ServerAcceptance
from outrider.bench.serve.sse_reader import Event, EventParser
from outrider.bench.serve.stream_chunk import StreamError, error_message, first_line, read_chunk

Clock = Callable[[], float]  # seconds, from any zero

# Idle connections are dropped before a server drops them (uvicorn: 5 s), so that no request is
# sent into one that is just being closed.
_KEEP_ALIVE_S = 2.0
_STREAM_TYPE = "text/event-stream"


def open_session(endpoint: Endpoint) -> aiohttp.ClientSession:
    """A session without a bound on its connections: an open loop must never wait for one.

    Proxies of the environment are not used: they would be measured too.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S),
        timeout=aiohttp.ClientTimeout(total=endpoint.timeout_s),
        headers=endpoint.headers,
    )


class _Reading:
    """The content of one stream that was read so far."""

    def __init__(self) -> None:
        self.texts_s: list[float] = []
        self.usages: tuple[AnswerTokens, ...] = ()
        self.acceptances: tuple[ServerAcceptance, ...] = ()
        self.is_finished = False

    def take(self, events: list[Event], now_s: float) -> None:
        """Note events that arrived together."""
        for event in events:
            chunk = read_chunk(event)
            if chunk.has_text:
                self.texts_s.append(now_s)
            self.usages = chunk.usages or self.usages  # of several the last counts everything
            self.acceptances = chunk.acceptances or self.acceptances
            self.is_finished |= chunk.is_finish

    def check(self) -> None:
        """Refuse an answer that is incomplete or has no text to time."""
        if not self.is_finished:
            raise StreamError("cut off", "the stream ended before its answer")
        if not self.texts_s:
            raise StreamError("empty answer", "the answer has no text, so no first token")

    @property
    def tokens(self) -> AnswerTokens:
        counted = AnswerTokens(prompt=0, output=len(self.texts_s), is_counted_by_server=False)
        return (*self.usages, counted)[0]


class Client:
    """Sends requests to one endpoint; takes every time from one clock."""

    def __init__(self, session: aiohttp.ClientSession, endpoint: Endpoint, clock: Clock) -> None:
        self._session = session
        self._endpoint = endpoint
        self._clock = clock

    async def send(
        self, index: int, body: dict[str, Any], *, note_chunk: Callable[[], None]
    ) -> Outcome:
        """The outcome of a request; `note_chunk` is called at every chunk with text."""
        content = json.dumps(body).encode()
        sent_s = self._clock()
        try:
            reading = await self._read(content, note_chunk)
        except StreamError as error:
            kind, message = error.kind, error.message
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            kind, message = _describe(error, self._endpoint)
        else:
            return ServerAnswer(
                index=index,
                timeline=Timeline(
                    sent_s=sent_s, texts_s=tuple(reading.texts_s), ended_s=self._clock()
                ),
                tokens=reading.tokens,
                acceptances=reading.acceptances,
            )
        return Failure(
            index=index, kind=kind, message=message, sent_s=sent_s, ended_s=self._clock()
        )

    async def _read(self, content: bytes, note_chunk: Callable[[], None]) -> _Reading:
        reading, parser = _Reading(), EventParser()
        headers = {"Content-Type": "application/json", "Accept": _STREAM_TYPE}
        async with self._session.post(
            self._endpoint.url, data=content, headers=headers
        ) as response:
            await _check_status(response)
            async for piece in response.content.iter_any():
                now_s, before = self._clock(), len(reading.texts_s)
                reading.take(parser.feed(piece), now_s)
                for _ in range(len(reading.texts_s) - before):
                    note_chunk()
        reading.take(parser.close(), self._clock())
        reading.check()
        return reading


async def _check_status(response: aiohttp.ClientResponse) -> None:
    is_stream = response.content_type == _STREAM_TYPE
    if response.status == 200 and is_stream:
        return
    message = body_message(await response.text(errors="replace"))
    if response.status == 200:
        raise StreamError("not a stream", f"{response.content_type}: {message}")
    raise StreamError(f"http {response.status}", message)


def body_message(text: str) -> str:
    """One line from the body of a refusal."""
    try:
        return error_message(json.loads(text))
    except ValueError:
        return first_line(text)


def _describe(error: Exception, endpoint: Endpoint) -> tuple[str, str]:
    """The kind of a connection error, and one line about it."""
    if isinstance(error, TimeoutError | asyncio.TimeoutError):
        return "timeout", f"no complete answer after {endpoint.timeout_s:g} s; see --timeout"
    if isinstance(error, aiohttp.ClientConnectorError):
        return "no connection", first_line(str(error))
    return "connection lost", first_line(str(error) or type(error).__name__)
