"""`/v1/completions`."""

import json
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from outrider.api.frontend import Frontend
from outrider.api.live import LiveRequest, PreparedRequest
from outrider.serve.conduct import Envelope, ServedModel, answer_stream, answer_whole
from outrider.serve.desk import Call, Desk, Piece
from outrider.serve.errors import failed
from outrider.serve.protocol.completions import (
    CompletionAnswer,
    CompletionChoice,
    CompletionRequest,
)
from outrider.serve.protocol.logprobs import LogprobWriter
from outrider.serve.protocol.shared import metrics_of, usage_of
from outrider.serve.routes.body import json_response, set_only
from outrider.serve.sse import DONE, event
from outrider.text.tokenizer import NoTokenizer, Tokenizer


def completion_routes(desk: Desk, model: ServedModel) -> APIRouter:
    router = APIRouter(tags=["OpenAI"])

    @router.post("/v1/completions", response_model=CompletionAnswer)
    async def create_completion(body: CompletionRequest, request: Request) -> Response:
        """Continue one prompt or several, whole or as server-sent events."""
        model.check(body.model)
        body.check()
        prepared = await desk.aside(lambda: _prepare(desk.frontend, body))
        writer = CompletionWriter(model.envelope("cmpl"), body, desk.tokenizer)
        if body.stream:
            return answer_stream(desk, prepared, writer.stream)
        call = await answer_whole(desk, request, prepared)
        return json_response(writer.whole(call))

    return router


def _prepare(frontend: Frontend, body: CompletionRequest) -> list[PreparedRequest]:
    params = body.params()
    return [frontend.prepare(prompt, params) for prompt in body.prompts]


class CompletionWriter:
    """Owns the shape of one call's answer."""

    def __init__(
        self, envelope: Envelope, body: CompletionRequest, tokenizer: Tokenizer | NoTokenizer
    ) -> None:
        self._envelope = envelope
        self._body = body
        self._tokenizer = tokenizer
        self._logprobs: dict[int, LogprobWriter] = {}  # by choice

    def whole(self, call: Call) -> CompletionAnswer:
        outputs = [(live, index) for live in call.lives for index in range(len(live.transcripts))]
        return self._answer(
            [self._choice(choice, *output) for choice, output in enumerate(outputs)],
            usage=usage_of(call.lives),
            **set_only(metrics=metrics_of(call.lives) if self._body.return_metrics else None),
        )

    async def stream(self, call: Call) -> AsyncIterator[bytes]:
        """The events of a call: what its choices gain, and at last the usage."""
        async for piece in call.pieces():
            live = call.lives[piece.request]
            if piece.delta.finish_reason == "error":
                yield event(json.dumps(failed(live.error).body))
                yield DONE
                return
            if piece.delta.text or piece.delta.finish_reason or piece.logprobs:
                yield self._event([self._gain(live, piece)], self._no_usage)
        if self._body.wants_usage or self._body.return_metrics:
            usage = {"usage": usage_of(call.lives)} if self._body.wants_usage else {}
            metrics = metrics_of(call.lives) if self._body.return_metrics else None
            yield self._event([], usage | set_only(metrics=metrics))
        yield DONE

    @property
    def _no_usage(self) -> dict[str, Any]:
        return {"usage": None} if self._body.wants_usage else {}

    def _choice(self, choice: int, live: LiveRequest, index: int) -> CompletionChoice:
        transcript = live.transcripts[index]
        writer = LogprobWriter(self._tokenizer)
        return CompletionChoice(
            index=choice,
            text=transcript.text,
            logprobs=writer.completion(transcript.token_ids, transcript.logprobs)
            if self._body.logprobs is not None
            else None,
            finish_reason=transcript.ending.finish,
            stop_reason=transcript.ending.stop,
            seed=live.prepared.samplings[index].seed,
        )

    def _gain(self, live: LiveRequest, piece: Piece) -> CompletionChoice:
        delta = piece.delta
        ending: dict[str, Any] = {}
        if delta.finish_reason:
            ending = {
                "stop_reason": live.transcripts[delta.index].ending.stop,
                "seed": live.prepared.samplings[delta.index].seed,
            }
        writer = self._logprobs.setdefault(piece.choice, LogprobWriter(self._tokenizer))
        return CompletionChoice(
            index=piece.choice,
            text=delta.text,
            logprobs=writer.completion(delta.token_ids, piece.logprobs)
            if self._body.logprobs is not None
            else None,
            finish_reason=delta.finish_reason,
            **ending,
        )

    def _event(self, choices: list[CompletionChoice], more: dict[str, Any]) -> bytes:
        return event(self._answer(choices, **more).model_dump_json(exclude_unset=True))

    def _answer(self, choices: list[CompletionChoice], **more: Any) -> CompletionAnswer:
        return CompletionAnswer(
            id=self._envelope.id,
            object="text_completion",
            created=self._envelope.created,
            model=self._envelope.model,
            choices=choices,
            **more,
        )
