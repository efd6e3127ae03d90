"""`/v1/completions`."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from outrider.frontend.call_cost import PromptRequest
from outrider.frontend.request_state import OutputState, RequestState
from outrider.frontend.tokenizer.tokenizer import NoTokenizer, Tokenizer
from outrider.server.answer_request import Envelope, ServedModel, answer_stream, answer_whole
from outrider.server.async_engine import AsyncEngine
from outrider.server.call_memory import memory_of
from outrider.server.json_body import JsonRoute
from outrider.server.protocol.completions_protocol import (
    CompletionAnswer,
    CompletionChoice,
    CompletionRequest,
)
from outrider.server.protocol.logprobs_protocol import (
    CompletionLogprobs,
    LogprobWriter,
    prompt_report,
)
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
from outrider.wire.step_result import TokenLogprobs


def completion_routes(async_engine: AsyncEngine, model: ServedModel) -> APIRouter:
    router = APIRouter(tags=["OpenAI"], route_class=JsonRoute)

    @router.post("/v1/completions", response_model=CompletionAnswer)
    async def create_completion(body: CompletionRequest, request: Request) -> Response:
        """Continue one prompt or several, whole or as server-sent events."""
        served = model.choose(body.model, body.lora_path)
        body.check()
        async_engine.rules.check_embeds(body.has_embeds)
        body = served.fill(body)
        admit = memory_of(request).admit
        role = async_engine.rules.role
        prepared = await async_engine.prepare(
            lambda: body.split(role, read_requests(body)), admit, served.find_adapter
        )
        envelope = served.envelope("cmpl", body.given_name)
        writer = CompletionWriter(envelope, body, async_engine.tokenizer)
        names = (envelope.id, body.given_name)
        if body.stream:
            return await answer_stream(async_engine, prepared, writer.stream, names)
        handle = await answer_whole(async_engine, request, prepared, names)
        return json_response(writer.whole(handle))

    return router


def read_requests(body: CompletionRequest) -> list[PromptRequest]:
    params = body.params()
    return [PromptRequest(prompt=prompt, params=params) for prompt in body.prompts]


def mean_logprob(output: OutputState) -> float:
    """The mean log-probability of an output's tokens."""
    return sum(at.chosen for at in output.logprobs) / max(1, len(output.logprobs))


class CompletionWriter:
    """Writes the answer to one request, whole or in chunks."""

    def __init__(
        self, envelope: Envelope, body: CompletionRequest, tokenizer: Tokenizer | NoTokenizer
    ) -> None:
        self._envelope = envelope
        self._body = body
        self._tokenizer = tokenizer
        self._logprobs: dict[int, LogprobWriter] = {}  # by choice of which something was sent

    def whole(self, handle: RequestHandle) -> CompletionAnswer:
        outputs = [(request, index) for request in handle.requests for index in self._sent(request)]
        return self._answer(
            [self._choice(choice, *output) for choice, output in enumerate(outputs)],
            usage=usage_to_tell(self._body, handle),
            **requested_metrics(self._body, handle),
            **offered_params(self._body, handle),
        )

    def _sent(self, request: RequestState) -> Sequence[int]:
        """The outputs that are sent: all, or with `best_of` those of the highest mean logprob."""
        everything = range(len(request.outputs))
        if not self._body.is_chosen:
            return everything
        likeliest = sorted(everything, key=lambda index: -mean_logprob(request.outputs[index]))
        return likeliest[: self._body.n or 1]

    def stream(self, handle: RequestHandle) -> AsyncIterator[bytes]:
        """The events of an answer: the deltas of its choices, and the usage at the end."""
        return write_events(self, self._body, handle)

    def opening_choices(self, handle: RequestHandle) -> Sequence[CompletionChoice]:
        del handle
        return ()

    def delta_choices(
        self, request: RequestState, choice_delta: ChoiceDelta
    ) -> Sequence[CompletionChoice]:
        delta, echo = choice_delta.delta, ""
        opening: dict[str, Any] = {}
        if choice_delta.choice not in self._logprobs:
            self._logprobs[choice_delta.choice] = LogprobWriter(self._tokenizer)
            echo, opening = self._echo(request), self._prompt(request)
        writer = self._logprobs[choice_delta.choice]
        choice = CompletionChoice(
            index=choice_delta.choice,
            text=echo + delta.text,
            logprobs=self._report(
                writer, request, delta.index, delta.token_ids, choice_delta.logprobs
            ),
            finish_reason=delta.finish_reason,
            **(ending_fields(request, delta.index) if delta.finish_reason else {}),
            **opening,
            **reported_ids(self._body, delta.token_ids),
        )
        has_more = choice.finish_reason or choice_delta.logprobs or self._body.return_token_ids
        return (choice,) if choice.text or has_more else ()

    def chunk(self, *choices: CompletionChoice, **more: Any) -> bytes:
        return event(self._answer(list(choices), **more).model_dump_json(exclude_unset=True))

    def _choice(self, choice: int, request: RequestState, index: int) -> CompletionChoice:
        output, writer = request.outputs[index], LogprobWriter(self._tokenizer)
        return CompletionChoice(
            index=choice,
            text=self._echo(request) + output.text,
            logprobs=self._report(writer, request, index, output.token_ids, output.logprobs),
            finish_reason=output.ending.finish,
            **ending_fields(request, index),
            **self._prompt(request),
            **reported_ids(self._body, output.token_ids),
            **reported_states(self._body, output),
        )

    def _prompt(self, request: RequestState) -> dict[str, Any]:
        """What a choice reports of its prompt, if requested."""
        wants_ids = bool(self._body.return_token_ids)
        wants_logprobs = self._body.prompt_logprobs is not None
        return set_only(
            prompt_logprobs=prompt_report(request) if wants_logprobs else None,
            prompt_token_ids=list(request.prepared.known_prompt) if wants_ids else None,
        )

    def _echo(self, request: RequestState) -> str:
        """The prompt if the request wants it repeated: as it was given, or decoded from its ids."""
        if not self._body.echo:
            return ""
        text, is_skipped = request.prepared.text, request.prepared.params.skip_special_tokens
        if text is not None:
            return text
        return self._tokenizer.decode(request.prepared.prompt, skip_special=is_skipped)

    def _report(
        self,
        writer: LogprobWriter,
        request: RequestState,
        index: int,
        tokens: Sequence[int],
        reported: Sequence[TokenLogprobs],
    ) -> CompletionLogprobs | None:
        """The log-probabilities of these tokens; those of an echoed prompt come first."""
        if self._body.logprobs is None:
            return None
        if not self._body.echo or writer.has_begun:
            return writer.completion(tokens, reported)
        prompt = writer.prompt(request.prepared.prompt, request.outputs[index].prompt_logprobs)
        return prompt.followed_by(writer.completion(tokens, reported))

    def _answer(self, choices: list[CompletionChoice], **more: Any) -> CompletionAnswer:
        return CompletionAnswer(
            id=self._envelope.id,
            object="text_completion",
            created=self._envelope.created,
            model=self._envelope.model,
            choices=choices,
            **more,
        )
