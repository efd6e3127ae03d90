"""`/v1/messages`: Anthropic's API over the same chats."""

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from outrider.frontend.request_state import RequestState
from outrider.server.answer_request import Envelope, ServedModel, answer_stream, answer_whole
from outrider.server.async_engine import AsyncEngine
from outrider.server.call_memory import memory_of
from outrider.server.http_errors import ApiError, failed
from outrider.server.json_body import JsonRoute
from outrider.server.limited_text import with_text
from outrider.server.parsers.answer_parsers import AnswerParsers
from outrider.server.protocol.chat_protocol import ChatRequest
from outrider.server.protocol.message_blocks import BlockWriter, Event, Json, message, stop_fields
from outrider.server.protocol.messages_protocol import CountRequest, MessagesRequest
from outrider.server.protocol.tool_call_parser import AnswerReader, read_whole
from outrider.server.protocol.transfer_fields import offered_params
from outrider.server.request_handle import RequestHandle
from outrider.server.response_bytes import named_event
from outrider.server.routes.chat_routes import read_request


def messages_routes(async_engine: AsyncEngine, model: ServedModel) -> APIRouter:
    router = APIRouter(tags=["Anthropic"], route_class=JsonRoute)

    @router.post("/v1/messages")
    async def create_message(body: MessagesRequest, request: Request) -> Response:
        """Answer a conversation, whole or as typed events."""
        served = model.choose(body.model)
        chat = body.in_chat()
        chat.check()
        chat, admit = served.fill(chat), memory_of(request).admit
        prepared = await async_engine.prepare(
            lambda: chat.split(
                async_engine.rules.role, read_request(async_engine.frontend, chat, served.parsers)
            ),
            admit,
            served.find_adapter,
        )
        envelope = served.envelope("msg")
        writer = MessageWriter(envelope, chat, served.parsers)
        if body.stream:
            return await answer_stream(async_engine, prepared, writer.stream, (envelope.id,))
        handle = await answer_whole(async_engine, request, prepared, (envelope.id,))
        return JSONResponse(writer.whole(handle))

    @router.post("/v1/messages/count_tokens")
    async def count_tokens(body: CountRequest, request: Request) -> dict[str, int]:
        """How many tokens the prompt of a message has."""
        model.check(body.model)
        chat, inputs = body.in_chat(), async_engine.frontend.inputs
        num_tokens = await with_text(
            async_engine,
            memory_of(request),
            lambda: inputs.render(chat.turns, **chat.variables),
            lambda prompt: len(inputs.encode(prompt)),
        )
        return {"input_tokens": num_tokens}

    return router


class MessageWriter:
    """Writes one message, whole or as events."""

    def __init__(self, envelope: Envelope, body: ChatRequest, parsers: AnswerParsers) -> None:
        self._envelope = envelope
        self._body = body
        self._parsers = parsers

    def whole(self, handle: RequestHandle) -> Json:
        (request,) = handle.requests
        blocks, reader = BlockWriter(), self._reader(request)
        for _ in (*blocks.add(read_whole(reader, request.outputs[0].text)), *blocks.end()):
            pass  # the events are for streams
        stop = stop_fields(request, has_calls=reader.has_calls)
        answer = message(self._envelope, request, blocks.written(), stop)
        return answer | offered_params(self._body, handle)

    async def stream(self, handle: RequestHandle) -> AsyncIterator[bytes]:
        """The events: the message, its blocks with their deltas, the end."""
        (request,) = handle.requests
        blocks, reader = BlockWriter(), self._reader(request)
        nothing = {"stop_reason": None, "stop_sequence": None}
        yield _event("message_start", message=message(self._envelope, request, [], nothing))
        async for choice_delta in handle.deltas():
            if choice_delta.delta.finish_reason == "error":
                yield _event("error", error=_error(failed(request.failure)))
                return
            for each in _written(blocks.add(reader.push(choice_delta.delta.text))):
                yield each
        for each in _written((*blocks.add(reader.finish()), *blocks.end())):
            yield each
        stop, usage = stop_fields(request, has_calls=reader.has_calls), request.usage
        counts = {"output_tokens": usage.completion_tokens, "input_tokens": usage.prompt_tokens}
        yield _event("message_delta", delta=stop, usage=counts)
        yield _event("message_stop")

    def _reader(self, request: RequestState) -> AnswerReader:
        return self._parsers.reader(self._body.tool_use, request.prepared.source)


def _error(error: ApiError) -> Json:
    """The error of a stream, with a type that Anthropic's API has."""
    kind = "invalid_request_error" if error.status < 500 else "api_error"
    return {"type": kind, "message": error.message}


def _written(events: Any) -> Iterator[bytes]:
    kind: str
    for kind, fields in events:
        yield _event(kind, **fields)


def _event(kind: str, **fields: Any) -> bytes:
    event: Event = (kind, fields)
    return named_event(event[0], json.dumps({"type": kind, **fields}))
