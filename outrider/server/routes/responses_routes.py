"""`/v1/responses`: OpenAI's newer API, with text and calls of functions. Nothing is stored."""

import itertools
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from outrider.frontend.frontend import Frontend
from outrider.frontend.request_state import PreparedRequest, RequestState
from outrider.frontend.tokenizer.tokenizer import NoTokenizer, Tokenizer
from outrider.server.answer_request import Envelope, ServedModel, answer_stream, answer_whole
from outrider.server.async_engine import AsyncEngine, RequestHandle
from outrider.server.protocol.logprobs_protocol import LogprobWriter
from outrider.server.protocol.response_items import (
    CallItem,
    Item,
    MessageItem,
    response_object,
    status_of,
    text_part,
)
from outrider.server.protocol.responses_protocol import ResponsesRequest
from outrider.server.protocol.tool_call_parser import Gain, read_whole
from outrider.server.sse import named_event
from outrider.wire.step_result import TokenLogprobs

Event = tuple[str, dict[str, Any]]  # the type, and the fields beside it


def responses_routes(async_engine: AsyncEngine, model: ServedModel) -> APIRouter:
    router = APIRouter(tags=["OpenAI"])

    @router.post("/v1/responses")
    async def create_response(body: ResponsesRequest, request: Request) -> Response:
        """Answer a text or a conversation, whole or as typed events."""
        model.check(body.model)
        body.check()
        prepared = await async_engine.prepare(lambda: _prepare(async_engine.frontend, body))
        writer = ResponseWriter(model.envelope("resp"), body, async_engine.tokenizer)
        if body.stream:
            return answer_stream(async_engine, prepared, writer.stream)
        handle = await answer_whole(async_engine, request, prepared)
        return JSONResponse(writer.whole(handle))

    return router


def _prepare(frontend: Frontend, body: ResponsesRequest) -> list[PreparedRequest]:
    params = body.params()
    return [frontend.prepare(frontend.render(body.turns, **body.variables), params)]


class ResponseWriter:
    """Owns the shape of one response and the count of its events."""

    def __init__(
        self, envelope: Envelope, body: ResponsesRequest, tokenizer: Tokenizer | NoTokenizer
    ) -> None:
        self._envelope = envelope
        self._body = body
        self._logprobs = LogprobWriter(tokenizer)
        self._numbers = itertools.count()

    def whole(self, handle: RequestHandle) -> dict[str, Any]:
        (live,) = handle.lives
        output = OutputWriter()
        mine = live.outputs[0]
        answer = read_whole(self._body.calling.reader(), mine.text)
        logprobs = self._report(mine.token_ids, mine.logprobs)
        for _ in (*output.add(answer, logprobs), *output.end(status_of(live))):
            pass  # nobody hears of what is sent as a whole
        return self._response(live, status_of(live), output)

    async def stream(self, handle: RequestHandle) -> AsyncIterator[bytes]:
        """Created, what the items gain, completed."""
        (live,) = handle.lives
        output, reader = OutputWriter(), self._body.calling.reader()
        for kind in ("response.created", "response.in_progress"):
            yield self._event(kind, response=self._response(live, "in_progress", output))
        async for choice_delta in handle.pieces():
            logprobs = self._report(choice_delta.delta.token_ids, choice_delta.logprobs)
            for kind, fields in output.add(reader.push(choice_delta.delta.text), logprobs):
                yield self._event(kind, **fields)
        status = status_of(live)
        closing = () if status == "failed" else output.add(reader.finish(), [])
        for kind, fields in (*closing, *output.end(status)):
            yield self._event(kind, **fields)
        yield self._event(f"response.{status}", response=self._response(live, status, output))

    def _report(
        self, tokens: Sequence[int], reported: Sequence[TokenLogprobs]
    ) -> list[dict[str, Any]]:
        """What was asked about these tokens, in the shape of a chat."""
        if not self._body.wants_logprobs:
            return []
        return [each.model_dump() for each in self._logprobs.chat(tokens, reported).content]

    def _response(self, live: RequestState, status: str, output: "OutputWriter") -> dict[str, Any]:
        items = output.written() if status != "in_progress" else []
        return response_object(self._body, self._envelope, live, status, items)

    def _event(self, kind: str, **fields: Any) -> bytes:
        body = {"type": kind, "sequence_number": next(self._numbers), **fields}
        return named_event(kind, json.dumps(body))


class OutputWriter:
    """Owns the items of a response. The last is open until another begins or all has ended."""

    def __init__(self) -> None:
        self._items: list[Item] = []
        self._statuses: list[str] = []

    def written(self) -> list[dict[str, Any]]:
        pairs = zip(self._items, self._statuses, strict=True)
        return [item.written(status) for item, status in pairs]

    def add(self, gain: Gain, logprobs: list[dict[str, Any]]) -> Iterator[Event]:
        """What the answer gained, as events; only text has log-probabilities."""
        if gain.content or logprobs:
            yield from self._add_text(gain.content, logprobs)
        for part in gain.calls:
            if part.name:
                yield from self._open(CallItem(part.name))
            if part.arguments:
                yield from self._add_arguments(part.arguments)

    def end(self, status: str) -> Iterator[Event]:
        """Nothing follows; an answer that said nothing is an empty message."""
        if not self._items:
            yield from self._open(MessageItem())
        yield from self._close("completed" if status == "completed" else "incomplete")

    def _add_text(self, text: str, logprobs: list[dict[str, Any]]) -> Iterator[Event]:
        if not self._items or not isinstance(self._items[-1], MessageItem):
            yield from self._open(MessageItem())
        item = self._items[-1]
        assert isinstance(item, MessageItem)
        item.text += text
        item.logprobs += logprobs
        yield "response.output_text.delta", self._part(delta=text, logprobs=logprobs)

    def _add_arguments(self, arguments: str) -> Iterator[Event]:
        item = self._items[-1]
        assert isinstance(item, CallItem), "the first part of a call has its name"
        item.arguments += arguments
        yield "response.function_call_arguments.delta", self._place(item, delta=arguments)

    def _open(self, item: Item) -> Iterator[Event]:
        yield from self._close("completed")
        self._items.append(item)
        self._statuses.append("in_progress")
        index = len(self._items) - 1
        opened = {"output_index": index, "item": item.written("in_progress")}
        yield "response.output_item.added", opened
        if isinstance(item, MessageItem):
            yield "response.content_part.added", self._part(part=text_part("", []))

    def _close(self, status: str) -> Iterator[Event]:
        if not self._items or self._statuses[-1] != "in_progress":
            return
        item, self._statuses[-1] = self._items[-1], status
        if isinstance(item, MessageItem):
            done = self._part(text=item.text, logprobs=item.logprobs)
            yield "response.output_text.done", done
            yield "response.content_part.done", self._part(part=item.part)
        else:
            told = self._place(item, name=item.name, arguments=item.arguments)
            yield "response.function_call_arguments.done", told
        closed = {"output_index": len(self._items) - 1, "item": item.written(status)}
        yield "response.output_item.done", closed

    def _place(self, item: Item, **fields: Any) -> dict[str, Any]:
        return {"item_id": item.id, "output_index": len(self._items) - 1, **fields}

    def _part(self, **fields: Any) -> dict[str, Any]:
        """About the one part of the message that is open."""
        return self._place(self._items[-1], content_index=0, **fields)
