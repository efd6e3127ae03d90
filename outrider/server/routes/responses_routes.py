"""`/v1/responses`: OpenAI's newer API, with text and function calls. Nothing is stored."""

import itertools
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from outrider.frontend.call_cost import PromptRequest
from outrider.frontend.frontend import Frontend
from outrider.frontend.request_state import RequestState
from outrider.frontend.tokenizer.tokenizer import NoTokenizer, Tokenizer
from outrider.server.answer_request import Envelope, ServedModel, answer_stream, answer_whole
from outrider.server.async_engine import AsyncEngine
from outrider.server.call_memory import memory_of
from outrider.server.json_body import JsonRoute
from outrider.server.parsers.answer_parsers import AnswerParsers
from outrider.server.protocol.logprobs_protocol import LogprobWriter
from outrider.server.protocol.response_items import (
    CallItem,
    Item,
    MessageItem,
    ReasoningItem,
    response_object,
    status_of,
    text_part,
)
from outrider.server.protocol.responses_protocol import ResponsesRequest
from outrider.server.protocol.tool_call_parser import AnswerDelta, AnswerReader, read_whole
from outrider.server.protocol.transfer_fields import has_read_prompts, offered_params
from outrider.server.request_handle import RequestHandle
from outrider.server.response_bytes import named_event
from outrider.wire.step_result import TokenLogprobs

Event = tuple[str, dict[str, Any]]  # the type and the other fields


def responses_routes(async_engine: AsyncEngine, model: ServedModel) -> APIRouter:
    router = APIRouter(tags=["OpenAI"], route_class=JsonRoute)

    @router.post("/v1/responses")
    async def create_response(body: ResponsesRequest, request: Request) -> Response:
        """Answer a text or a conversation, whole or as typed events."""
        served = model.choose(body.model)
        body.check()
        body = served.fill(body)
        admit = memory_of(request).admit
        prepared = await async_engine.prepare(
            lambda: body.split(
                async_engine.rules.role, _read_request(async_engine.frontend, body, served.parsers)
            ),
            admit,
            served.find_adapter,
        )
        envelope = served.envelope("resp", body.given_name)
        writer = ResponseWriter(envelope, body, served.parsers, async_engine.tokenizer)
        names = (envelope.id, body.given_name)
        if body.stream:
            return await answer_stream(async_engine, prepared, writer.stream, names)
        handle = await answer_whole(async_engine, request, prepared, names)
        return JSONResponse(writer.whole(handle))

    return router


def _read_request(
    frontend: Frontend, body: ResponsesRequest, parsers: AnswerParsers
) -> list[PromptRequest]:
    prompt = frontend.inputs.render(body.turns, **body.variables)
    return [PromptRequest(prompt=prompt, params=body.params(parsers, prompt))]


class ResponseWriter:
    """Writes one response, whole or as events, and numbers the events."""

    def __init__(
        self,
        envelope: Envelope,
        body: ResponsesRequest,
        parsers: AnswerParsers,
        tokenizer: Tokenizer | NoTokenizer,
    ) -> None:
        self._envelope = envelope
        self._body = body
        self._parsers = parsers
        self._logprobs = LogprobWriter(tokenizer)
        self._numbers = itertools.count()

    def whole(self, handle: RequestHandle) -> dict[str, Any]:
        (request,) = handle.requests
        items, output = ItemWriter(), request.outputs[0]
        answer = read_whole(self._reader(request), output.text)
        logprobs = self._report(output.token_ids, output.logprobs)
        for _ in (*items.add(answer, logprobs), *items.end(status_of(request))):
            pass  # the events are for streams
        response = self._response(request, status_of(request), items)
        if not has_read_prompts(self._body, handle):
            response["usage"] = None
        return response | offered_params(self._body, handle)

    async def stream(self, handle: RequestHandle) -> AsyncIterator[bytes]:
        """The events: created, the deltas of items, completed."""
        (request,) = handle.requests
        items, reader = ItemWriter(), self._reader(request)
        for kind in ("response.created", "response.in_progress"):
            yield self._event(kind, response=self._response(request, "in_progress", items))
        async for choice_delta in handle.deltas():
            logprobs = self._report(choice_delta.delta.token_ids, choice_delta.logprobs)
            for kind, fields in items.add(reader.push(choice_delta.delta.text), logprobs):
                yield self._event(kind, **fields)
        status = status_of(request)
        closing = () if status == "failed" else items.add(reader.finish(), [])
        for kind, fields in (*closing, *items.end(status)):
            yield self._event(kind, **fields)
        yield self._event(f"response.{status}", response=self._response(request, status, items))

    def _reader(self, request: RequestState) -> AnswerReader:
        return self._parsers.reader(self._body.tool_use, request.prepared.source)

    def _report(
        self, tokens: Sequence[int], reported: Sequence[TokenLogprobs]
    ) -> list[dict[str, Any]]:
        """The log-probabilities of these tokens in the format of a chat, if they were requested."""
        if not self._body.wants_logprobs:
            return []
        return [each.model_dump() for each in self._logprobs.chat(tokens, reported).content]

    def _response(self, request: RequestState, status: str, items: "ItemWriter") -> dict[str, Any]:
        output = items.written() if status != "in_progress" else []
        return response_object(self._body, self._envelope, request, status, output)

    def _event(self, kind: str, **fields: Any) -> bytes:
        body = {"type": kind, "sequence_number": next(self._numbers), **fields}
        return named_event(kind, json.dumps(body))


class ItemWriter:
    """Owns the output items of a response. The last one is open until the next begins."""

    def __init__(self) -> None:
        self._items: list[Item] = []
        self._statuses: list[str] = []

    def written(self) -> list[dict[str, Any]]:
        pairs = zip(self._items, self._statuses, strict=True)
        return [item.written(status) for item, status in pairs]

    def add(self, delta: AnswerDelta, logprobs: list[dict[str, Any]]) -> Iterator[Event]:
        """The events of a delta. Only text has log-probabilities."""
        if delta.reasoning:
            yield from self._add_reasoning(delta.reasoning)
        if delta.content or logprobs:
            yield from self._add_text(delta.content, logprobs)
        for part in delta.calls:
            if part.name:
                yield from self._open(CallItem(part.name))
            if part.arguments:
                yield from self._add_arguments(part.arguments)

    def end(self, status: str) -> Iterator[Event]:
        """The last events. An answer without text or calls becomes an empty message."""
        if not any(isinstance(item, MessageItem | CallItem) for item in self._items):
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

    def _add_reasoning(self, text: str) -> Iterator[Event]:
        if not self._items:
            yield from self._open(ReasoningItem())
        item = self._items[-1]
        assert isinstance(item, ReasoningItem), "reasoning comes first"
        item.text += text
        yield "response.reasoning_text.delta", self._part(delta=text)

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
        elif isinstance(item, ReasoningItem):
            yield "response.reasoning_text.done", self._part(text=item.text)
        else:
            done = self._place(item, name=item.name, arguments=item.arguments)
            yield "response.function_call_arguments.done", done
        closed = {"output_index": len(self._items) - 1, "item": item.written(status)}
        yield "response.output_item.done", closed

    def _place(self, item: Item, **fields: Any) -> dict[str, Any]:
        return {"item_id": item.id, "output_index": len(self._items) - 1, **fields}

    def _part(self, **fields: Any) -> dict[str, Any]:
        """The fields of an event about the text of the open message."""
        return self._place(self._items[-1], content_index=0, **fields)
