"""`/v1/chat/completions`."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from outrider.frontend.frontend import Frontend
from outrider.frontend.outputs import StreamDelta
from outrider.frontend.request_state import OutputState, PreparedRequest, RequestState
from outrider.frontend.tokenizer.tokenizer import NoTokenizer, Tokenizer
from outrider.server.answer_request import Envelope, ServedModel, answer_stream, answer_whole
from outrider.server.async_engine import AsyncEngine, ChoiceDelta, RequestHandle
from outrider.server.protocol.chat_protocol import (
    AnswerMessage,
    ChatAnswer,
    ChatChoice,
    ChatChunk,
    ChatDelta,
    ChatRequest,
    ChunkChoice,
)
from outrider.server.protocol.logprobs_protocol import LogprobWriter
from outrider.server.protocol.round_traces import RoundWriter
from outrider.server.protocol.tool_call_parser import AnswerReader, Gain, read_whole
from outrider.server.protocol.tools import call_delta, new_call
from outrider.server.protocol.usage_fields import usage_of
from outrider.server.routes.json_body import json_response, set_only
from outrider.server.routes.stream_events import asked_metrics, ending_of, write_events
from outrider.server.sse import event
from outrider.wire.step_result import RoundTrace


def chat_routes(async_engine: AsyncEngine, model: ServedModel) -> APIRouter:
    router = APIRouter(tags=["OpenAI"])

    @router.post("/v1/chat/completions", response_model=ChatAnswer)
    async def create_chat_completion(body: ChatRequest, request: Request) -> Response:
        """Answer a conversation, whole or as server-sent events."""
        model.check(body.model)
        body.check()
        prepared = await async_engine.prepare(lambda: _prepare(async_engine.frontend, body))
        writer = ChatWriter(model.envelope("chatcmpl"), body, async_engine.tokenizer)
        if body.stream:
            return answer_stream(async_engine, prepared, writer.stream)
        handle = await answer_whole(async_engine, request, prepared)
        return json_response(writer.whole(handle))

    return router


def _prepare(frontend: Frontend, body: ChatRequest) -> list[PreparedRequest]:
    params = body.params()
    return [frontend.prepare(frontend.render(body.turns, **body.variables), params)]


class ChatWriter:
    """Owns the shape of one call's answer."""

    def __init__(
        self, envelope: Envelope, body: ChatRequest, tokenizer: Tokenizer | NoTokenizer
    ) -> None:
        self._envelope = envelope
        self._body = body
        self._tokenizer = tokenizer
        self._logprobs = LogprobWriter(tokenizer)
        self._rounds: dict[int, RoundWriter] = {}  # by choice
        self._readers: dict[int, AnswerReader] = {}  # by choice of a stream

    def whole(self, handle: RequestHandle) -> ChatAnswer:
        (live,) = handle.lives
        return ChatAnswer(
            id=self._envelope.id,
            object="chat.completion",
            created=self._envelope.created,
            model=self._envelope.model,
            choices=[self._choice(live, index) for index in range(len(live.outputs))],
            usage=usage_of(handle.lives),
            **asked_metrics(self._body, handle),
        )

    def stream(self, handle: RequestHandle) -> AsyncIterator[bytes]:
        """The events of a call: one role per choice, what they gain, and at last the usage."""
        return write_events(self, self._body, handle)

    def opening(self, handle: RequestHandle) -> Sequence[ChunkChoice]:
        (live,) = handle.lives
        choices = range(len(live.outputs))
        self._readers = {index: self._body.calling.reader() for index in choices}
        return [_opening(index, None if self._body.calling.must_call else "") for index in choices]

    def gain(self, live: RequestState, choice_delta: ChoiceDelta) -> Sequence[ChunkChoice]:
        said = self._read(choice_delta.delta)
        has_more = (
            choice_delta.delta.finish_reason or choice_delta.logprobs or choice_delta.delta.rounds
        )
        if not said.model_fields_set and not has_more:
            return ()
        return (self._gain(live, choice_delta, said),)

    def chunk(self, *choices: ChunkChoice, **more: Any) -> bytes:
        chunk = ChatChunk(
            id=self._envelope.id,
            object="chat.completion.chunk",
            created=self._envelope.created,
            model=self._envelope.model,
            choices=list(choices),
            **more,
        )
        return event(chunk.model_dump_json(exclude_unset=True))

    def _choice(self, live: RequestState, index: int) -> ChatChoice:
        transcript = live.outputs[index]
        asked = self._body.logprobs
        reader = self._body.calling.reader()
        message = _message(read_whole(reader, transcript.text))
        return ChatChoice(
            index=index,
            message=message,
            logprobs=self._logprobs.chat(transcript.token_ids, transcript.logprobs)
            if asked
            else None,
            finish_reason=_finish(transcript.ending.finish, reader),
            **ending_of(live, index),
            **self._trace(index, transcript, transcript.rounds),
        )

    def _trace(
        self, index: int, transcript: OutputState, rounds: list[RoundTrace]
    ) -> dict[str, Any]:
        if not self._body.trace:
            return {}
        writer = self._rounds.setdefault(index, RoundWriter(self._tokenizer))
        return {"rounds": writer.write(transcript, rounds)}

    def _read(self, delta: StreamDelta) -> ChatDelta:
        """What is certain of content and calls."""
        reader = self._readers[delta.index]
        gains = [reader.push(delta.text)]
        if delta.finish_reason:
            gains.append(reader.finish())
        content = "".join(gain.content for gain in gains)
        calls = [call_delta(part) for gain in gains for part in gain.calls]
        return ChatDelta(**set_only(content=content or None, tool_calls=calls or None))

    def _gain(self, live: RequestState, choice_delta: ChoiceDelta, said: ChatDelta) -> ChunkChoice:
        delta = choice_delta.delta
        return ChunkChoice(
            index=delta.index,
            delta=said,
            logprobs=self._logprobs.chat(delta.token_ids, choice_delta.logprobs)
            if self._body.logprobs
            else None,
            finish_reason=delta.finish_reason
            and _finish(delta.finish_reason, self._readers[delta.index]),
            **(ending_of(live, delta.index) if delta.finish_reason else {}),
            **self._trace(delta.index, live.outputs[delta.index], delta.rounds),
        )


def _message(answer: Gain) -> AnswerMessage:
    calls = [new_call(handle) for handle in answer.calls]
    content = None if calls and not answer.content else answer.content
    return AnswerMessage(
        role="assistant", content=content, refusal=None, **set_only(tool_calls=calls or None)
    )


def _finish(reason: str, reader: AnswerReader) -> str:
    """Why an answer ended; one that was cut says so, whatever it called before."""
    return "tool_calls" if reason == "stop" and reader.has_calls else reason


def _opening(index: int, content: str | None) -> ChunkChoice:
    delta = ChatDelta(role="assistant", content=content)
    return ChunkChoice(index=index, delta=delta, logprobs=None, finish_reason=None)
