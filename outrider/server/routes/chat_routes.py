"""`/v1/chat/completions`."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from outrider.frontend.call_cost import PromptRequest
from outrider.frontend.frontend import Frontend
from outrider.frontend.outputs import StreamDelta
from outrider.frontend.request_state import OutputState, RequestState
from outrider.frontend.tokenizer.tokenizer import NoTokenizer, Tokenizer
from outrider.server.answer_request import Envelope, ServedModel, answer_stream, answer_whole
from outrider.server.async_engine import AsyncEngine
from outrider.server.call_memory import memory_of
from outrider.server.json_body import JsonRoute
from outrider.server.parsers.answer_parsers import NO_PARSERS, AnswerParsers
from outrider.server.protocol.chat_protocol import (
    AnswerMessage,
    ChatAnswer,
    ChatChoice,
    ChatChunk,
    ChatDelta,
    ChatRequest,
    ChunkChoice,
)
from outrider.server.protocol.logprobs_protocol import LogprobWriter, prompt_report
from outrider.server.protocol.round_traces import RoundWriter
from outrider.server.protocol.tool_call_parser import AnswerDelta, AnswerReader, read_whole
from outrider.server.protocol.tools import call_delta, new_call
from outrider.server.protocol.transfer_fields import offered_params, usage_to_tell
from outrider.server.request_handle import ChoiceDelta, RequestHandle
from outrider.server.response_bytes import event, json_response, set_only
from outrider.server.routes.stream_events import (
    ending_fields,
    reported_ids,
    reported_states,
    requested_metrics,
    write_events,
)
from outrider.wire.step_result import RoundTrace


def chat_routes(async_engine: AsyncEngine, model: ServedModel) -> APIRouter:
    router = APIRouter(tags=["OpenAI"], route_class=JsonRoute)

    @router.post("/v1/chat/completions", response_model=ChatAnswer)
    async def create_chat_completion(body: ChatRequest, request: Request) -> Response:
        """Answer a conversation, whole or as server-sent events."""
        served = model.choose(body.model, body.lora_path)
        body.check()
        body = served.fill(body)
        admit = memory_of(request).admit
        parsers = served.parsers.chosen(separates=body.separate_reasoning is not False)
        prepared = await async_engine.prepare(
            lambda: body.split(
                async_engine.rules.role, read_request(async_engine.frontend, body, parsers)
            ),
            admit,
            served.find_adapter,
        )
        envelope = served.envelope("chatcmpl", body.given_name)
        writer = ChatWriter(envelope, body, parsers, async_engine.tokenizer)
        names = (envelope.id, body.given_name)
        if body.stream:
            return await answer_stream(async_engine, prepared, writer.stream, names)
        handle = await answer_whole(async_engine, request, prepared, names)
        return json_response(writer.whole(handle))

    return router


def read_request(
    frontend: Frontend, body: ChatRequest, parsers: AnswerParsers = NO_PARSERS
) -> list[PromptRequest]:
    prompt = frontend.inputs.render(body.turns, **body.variables)
    return [PromptRequest(prompt=prompt, params=body.params(parsers, prompt))]


class ChatWriter:
    """Writes the answer to one request, whole or in chunks."""

    def __init__(
        self,
        envelope: Envelope,
        body: ChatRequest,
        parsers: AnswerParsers,
        tokenizer: Tokenizer | NoTokenizer,
    ) -> None:
        self._envelope = envelope
        self._body = body
        self._parsers = parsers
        self._tokenizer = tokenizer
        self._logprobs = LogprobWriter(tokenizer)
        self._rounds: dict[int, RoundWriter] = {}  # by choice
        self._readers: dict[int, AnswerReader] = {}  # by choice of a stream
        self._opening: dict[str, Any] = {}  # fields of the first chunk

    def whole(self, handle: RequestHandle) -> ChatAnswer:
        (request,) = handle.requests
        return ChatAnswer(
            id=self._envelope.id,
            object="chat.completion",
            created=self._envelope.created,
            model=self._envelope.model,
            choices=[self._choice(request, index) for index in range(len(request.outputs))],
            usage=usage_to_tell(self._body, handle),
            **requested_metrics(self._body, handle),
            **offered_params(self._body, handle),
            **self._prompt(request),
        )

    def _prompt(self, request: RequestState) -> dict[str, Any]:
        """What the answer reports of the prompt, if requested."""
        wants_ids = bool(self._body.return_token_ids)
        wants_logprobs = self._body.prompt_logprobs is not None
        return set_only(
            prompt_logprobs=prompt_report(request) if wants_logprobs else None,
            prompt_token_ids=list(request.prepared.prompt) if wants_ids else None,
        )

    def stream(self, handle: RequestHandle) -> AsyncIterator[bytes]:
        """The events of an answer: the role of each choice, its deltas, then the usage."""
        return write_events(self, self._body, handle)

    def opening_choices(self, handle: RequestHandle) -> Sequence[ChunkChoice]:
        (request,) = handle.requests
        choices, self._opening = range(len(request.outputs)), self._prompt(request)
        self._readers = {index: self._reader(request) for index in choices}
        return [_opening(index, None if self._body.tool_use.must_call else "") for index in choices]

    def _reader(self, request: RequestState) -> AnswerReader:
        return self._parsers.reader(self._body.tool_use, request.prepared.source)

    def delta_choices(
        self, request: RequestState, choice_delta: ChoiceDelta
    ) -> Sequence[ChunkChoice]:
        chat_delta = self._read(choice_delta.delta)
        has_more = (
            choice_delta.delta.finish_reason
            or choice_delta.logprobs
            or choice_delta.delta.rounds
            or self._body.return_token_ids
        )
        if not chat_delta.model_fields_set and not has_more:
            return ()
        return (self._delta_choice(request, choice_delta, chat_delta),)

    def chunk(self, *choices: ChunkChoice, **more: Any) -> bytes:
        more, self._opening = {**self._opening, **more}, {}
        chunk = ChatChunk(
            id=self._envelope.id,
            object="chat.completion.chunk",
            created=self._envelope.created,
            model=self._envelope.model,
            choices=list(choices),
            **more,
        )
        return event(chunk.model_dump_json(exclude_unset=True))

    def _choice(self, request: RequestState, index: int) -> ChatChoice:
        output = request.outputs[index]
        reader = self._reader(request)
        answer = read_whole(reader, output.text)
        if not self._body.shows_reasoning:
            answer = replace(answer, reasoning="")
        message = _message(answer)
        return ChatChoice(
            index=index,
            message=message,
            logprobs=self._logprobs.chat(output.token_ids, output.logprobs)
            if self._body.logprobs
            else None,
            finish_reason=_finish(output.ending.finish, reader),
            **ending_fields(request, index),
            **self._trace(index, output, output.rounds),
            **reported_ids(self._body, output.token_ids),
            **reported_states(self._body, output),
        )

    def _trace(self, index: int, output: OutputState, rounds: list[RoundTrace]) -> dict[str, Any]:
        if not self._body.trace:
            return {}
        writer = self._rounds.setdefault(index, RoundWriter(self._tokenizer))
        return {"rounds": writer.write(output, rounds)}

    def _read(self, delta: StreamDelta) -> ChatDelta:
        """The content and the tool calls that a delta is sure to add."""
        reader = self._readers[delta.index]
        added = [reader.push(delta.text)]
        if delta.finish_reason:
            added.append(reader.finish())
        content = "".join(each.content for each in added)
        calls = [call_delta(part) for each in added for part in each.calls]
        reasoning = "".join(each.reasoning for each in added if self._body.shows_reasoning)
        return ChatDelta(
            **set_only(
                content=content or None,
                reasoning_content=reasoning or None,
                tool_calls=calls or None,
            )
        )

    def _delta_choice(
        self, request: RequestState, choice_delta: ChoiceDelta, chat_delta: ChatDelta
    ) -> ChunkChoice:
        delta = choice_delta.delta
        return ChunkChoice(
            index=delta.index,
            delta=chat_delta,
            logprobs=self._logprobs.chat(delta.token_ids, choice_delta.logprobs)
            if self._body.logprobs
            else None,
            finish_reason=delta.finish_reason
            and _finish(delta.finish_reason, self._readers[delta.index]),
            **(ending_fields(request, delta.index) if delta.finish_reason else {}),
            **self._trace(delta.index, request.outputs[delta.index], delta.rounds),
            **reported_ids(self._body, delta.token_ids),
        )


def _message(answer: AnswerDelta) -> AnswerMessage:
    calls = [new_call(part) for part in answer.calls]
    content = None if calls and not answer.content else answer.content
    more = set_only(reasoning_content=answer.reasoning or None, tool_calls=calls or None)
    return AnswerMessage(role="assistant", content=content, refusal=None, **more)


def _finish(reason: str, reader: AnswerReader) -> str:
    """Why an answer ended. One that was cut at a limit says so, even if it has tool calls."""
    return "tool_calls" if reason == "stop" and reader.has_calls else reason


def _opening(index: int, content: str | None) -> ChunkChoice:
    delta = ChatDelta(role="assistant", content=content)
    return ChunkChoice(index=index, delta=delta, logprobs=None, finish_reason=None)
