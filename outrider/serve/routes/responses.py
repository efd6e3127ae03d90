"""`/v1/responses`: OpenAI's newer API, as far as text goes. Nothing is stored."""

import itertools
import json
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from outrider.api.frontend import Frontend
from outrider.api.live import LiveRequest, PreparedRequest
from outrider.serve.conduct import Envelope, ServedModel, answer_stream, answer_whole
from outrider.serve.desk import Call, Desk
from outrider.serve.protocol.responses import (
    ResponsesRequest,
    output_item,
    output_text,
    response_object,
)
from outrider.serve.sse import named_event


def responses_routes(desk: Desk, model: ServedModel) -> APIRouter:
    router = APIRouter(tags=["OpenAI"])

    @router.post("/v1/responses")
    async def create_response(body: ResponsesRequest, request: Request) -> Response:
        """Answer a text or a conversation, whole or as typed events."""
        model.check(body.model)
        body.check()
        prepared = await desk.aside(lambda: _prepare(desk.frontend, body))
        writer = ResponseWriter(model.envelope("resp"), body)
        if body.stream:
            return answer_stream(desk, [prepared], writer.stream)
        call = await answer_whole(desk, request, [prepared])
        return JSONResponse(writer.whole(call))

    return router


def _prepare(frontend: Frontend, body: ResponsesRequest) -> PreparedRequest:
    prompt = frontend.render(body.turns, **(body.chat_template_kwargs or {}))
    return frontend.prepare(prompt, body.params())


class ResponseWriter:
    """Owns the shape of one response and the count of its events."""

    def __init__(self, envelope: Envelope, body: ResponsesRequest) -> None:
        self._envelope = envelope
        self._body = body
        self._numbers = itertools.count()

    def whole(self, call: Call) -> dict[str, Any]:
        (live,) = call.lives
        return self._response(live, _status(live))

    async def stream(self, call: Call) -> AsyncIterator[bytes]:
        """Created, opened, what the text gains, closed, completed."""
        (live,) = call.lives
        yield self._event("response.created", response=self._response(live, "in_progress"))
        yield self._event("response.in_progress", response=self._response(live, "in_progress"))
        empty = output_item(self._envelope, "", "in_progress") | {"content": []}
        yield self._event("response.output_item.added", output_index=0, item=empty)
        yield self._part("response.content_part.added", part=output_text(""))
        async for piece in call.pieces():
            if piece.delta.text:
                yield self._part("response.output_text.delta", delta=piece.delta.text, logprobs=[])
        status = _status(live)
        if status == "failed":
            yield self._event("response.failed", response=self._response(live, status))
            return
        text = live.transcripts[0].text
        yield self._part("response.output_text.done", text=text, logprobs=[])
        yield self._part("response.content_part.done", part=output_text(text))
        item = output_item(self._envelope, text, status)
        yield self._event("response.output_item.done", output_index=0, item=item)
        yield self._event(f"response.{status}", response=self._response(live, status))

    def _response(self, live: LiveRequest, status: str) -> dict[str, Any]:
        return response_object(self._body, self._envelope, live, status)

    def _part(self, kind: str, **fields: Any) -> bytes:
        """An event about the one part of the one item."""
        item = self._envelope.id.replace("resp", "msg")
        return self._event(kind, item_id=item, output_index=0, content_index=0, **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:
        body = {"type": kind, "sequence_number": next(self._numbers), **fields}
        return named_event(kind, json.dumps(body))


def _status(live: LiveRequest) -> str:
    statuses = {"length": "incomplete", "error": "failed"}
    return statuses.get(live.transcripts[0].ending.finish, "completed")
