"""Ollama's `/api/...` over the same chats: lines of JSON instead of events."""

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from outrider import __version__
from outrider.frontend.request_state import RequestState
from outrider.server.answer_request import ServedModel, answer_lines, answer_whole
from outrider.server.async_engine import AsyncEngine
from outrider.server.call_memory import memory_of
from outrider.server.http_errors import failed
from outrider.server.json_body import AnyTypeRoute
from outrider.server.protocol.chat_protocol import ChatRequest
from outrider.server.protocol.ollama_protocol import OllamaChat, OllamaGenerate, OllamaModel
from outrider.server.protocol.tool_call_parser import AnswerDelta, AnswerReader, read_whole
from outrider.server.request_handle import RequestHandle
from outrider.server.routes.chat_routes import read_request
from outrider.wire.adapter import Adapter

Json = dict[str, Any]


def ollama_routes(async_engine: AsyncEngine, model: ServedModel) -> APIRouter:
    router = APIRouter(tags=["Ollama"], route_class=AnyTypeRoute)

    @router.post("/api/chat")
    async def chat(body: OllamaChat, request: Request) -> Response:
        """Answer a conversation, as lines of JSON unless `stream` is false."""
        return await _answer(async_engine, request, body, ChatLines(model, body.in_chat()))

    @router.post("/api/generate")
    async def generate(body: OllamaGenerate, request: Request) -> Response:
        """Answer one prompt, rendered by the chat template."""
        return await _answer(async_engine, request, body, GenerateLines(model, body.in_chat()))

    _add_listing(router, async_engine, model)
    return router


def _add_listing(router: APIRouter, async_engine: AsyncEngine, model: ServedModel) -> None:
    """Add the routes that say what is served."""

    @router.get("/api/tags")
    async def tags() -> Json:
        """The one model."""
        return {"models": [_card(model)]}

    @router.get("/api/ps")
    async def running() -> Json:
        """The one model, which is always loaded."""
        return {"models": [_card(model)]}

    @router.post("/api/show")
    async def show(body: OllamaModel) -> Json:
        """What the model can do."""
        model.check(body.named)
        length = async_engine.engine.max_context
        return {
            "details": _card(model)["details"],
            "capabilities": ["completion", "tools"],
            "model_info": {"general.architecture": "outrider", "outrider.context_length": length},
        }

    @router.get("/api/version")
    async def version() -> Json:
        """The version of this server."""
        return {"version": __version__}


async def _answer(
    async_engine: AsyncEngine,
    request: Request,
    body: OllamaChat | OllamaGenerate,
    writer: "ChatLines",
) -> Response:
    chat, admit = writer.check(body.named), memory_of(request).admit
    prepared = await async_engine.prepare(
        lambda: read_request(async_engine.frontend, chat, writer.parsers),
        admit,
        writer.find_adapter,
    )
    if body.stream is not False:
        return await answer_lines(async_engine, prepared, writer.stream)
    return JSONResponse(writer.whole(await answer_whole(async_engine, request, prepared)))


def _card(model: ServedModel) -> Json:
    details = {"format": "", "family": "", "parameter_size": "", "quantization_level": ""}
    return {"name": model.name, "model": model.name, "size": 0, "digest": "", "details": details}


class ChatLines:
    """Writes the answer to a chat as one object, or as a line for each delta."""

    def __init__(self, model: ServedModel, body: ChatRequest) -> None:
        self._model = model
        self._body = body
        self.parsers = model.parsers

    def find_adapter(self) -> Adapter:
        """That of the model which `check` has chosen."""
        return self._model.find_adapter()

    def check(self, requested: str | None) -> ChatRequest:
        """Choose the model; the chat with its sampling, unless the request is wrong."""
        self._model = self._model.choose(requested)
        self._body.check()
        return self._model.fill(self._body)

    def whole(self, handle: RequestHandle) -> Json:
        (request,) = handle.requests
        answer = read_whole(self._reader(request), request.outputs[0].text)
        return self._line(self._added(answer), **_ending(request))

    async def stream(self, handle: RequestHandle) -> AsyncIterator[bytes]:
        (request,) = handle.requests
        reader = self._reader(request)
        async for choice_delta in handle.deltas():
            if choice_delta.delta.finish_reason == "error":
                yield _bytes({"error": failed(request.failure).message})
                return
            delta = reader.push(choice_delta.delta.text)
            if delta.content or delta.reasoning or delta.calls:
                yield _bytes(self._line(self._added(delta), done=False))
        last = reader.finish()
        yield _bytes(self._line(self._added(last), **_ending(request)))

    def _reader(self, request: RequestState) -> AnswerReader:
        return self.parsers.reader(self._body.tool_use, request.prepared.source)

    def _line(self, added: Json, **more: Any) -> Json:
        now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        return {"model": self._model.name, "created_at": now, **added, **more}

    def _added(self, delta: AnswerDelta) -> Json:
        message: Json = {"role": "assistant", "content": delta.content}
        if delta.reasoning:
            message["thinking"] = delta.reasoning
        if delta.calls:
            message["tool_calls"] = [
                {"function": {"name": part.name, "arguments": _arguments(part.arguments)}}
                for part in delta.calls
                if part.name
            ]
        return {"message": message}


class GenerateLines(ChatLines):
    """The same for one prompt, whose answer is a text."""

    def _added(self, delta: AnswerDelta) -> Json:
        thinking = {"thinking": delta.reasoning} if delta.reasoning else {}
        return {"response": delta.content, **thinking}


def _ending(request: RequestState) -> Json:
    """The fields of the last line; durations are in nanoseconds."""
    usage, timing, finish = request.usage, request.timing, request.outputs[0].ending.finish
    return {
        "done": True,
        "done_reason": finish,
        "total_duration": int(timing.total_s * 1e9),
        "load_duration": 0,
        "prompt_eval_count": usage.prompt_tokens,
        "prompt_eval_duration": int(timing.first_token_s * 1e9),
        "eval_count": usage.completion_tokens,
        "eval_duration": int((timing.total_s - timing.first_token_s) * 1e9),
    }


def _arguments(text: str) -> Any:
    try:
        return json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}


def _bytes(line: Json) -> bytes:
    return json.dumps(line).encode() + b"\n"
