"""Lines of OpenAI's batch files: {"custom_id", "method", "url", "body"}, answered in its format."""

import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from outrider.config.install_hint import install_hint
from outrider.errors import ConfigError, RequestError
from outrider.frontend.frontend import Frontend
from outrider.frontend.request_state import PreparedRequest, RequestState
from outrider.frontend.sampling_params import SamplingParams
from outrider.hub.generation_config import SAMPLING
from outrider.wire.adapter import NO_ADAPTER, Adapter

if TYPE_CHECKING:
    from outrider.server.protocol.chat_protocol import ChatRequest
    from outrider.server.protocol.completions_protocol import CompletionRequest

Json = dict[str, Any]

_KEYS = frozenset({"custom_id", "method", "url", "body"})
_FILLED = (
    *sorted(SAMPLING),
    "seed",
    "stop",
    "presence_penalty",
    "frequency_penalty",
    "min_tokens",
    "ignore_eos",
)
_URLS = ("/v1/chat/completions", "/v1/completions")


def is_openai_line(value: object) -> bool:
    return isinstance(value, Mapping) and {"custom_id", "url", "body"} <= value.keys()


class OpenAiLine:
    """One request of a batch file, and how its answer is written."""

    def __init__(self, value: Mapping[str, Any]) -> None:
        url, body, self._custom_id = value["url"], value["body"], value["custom_id"]
        if not isinstance(self._custom_id, str):
            raise RequestError("custom_id must be a string")
        if unknown := sorted(value.keys() - _KEYS):
            raise RequestError(f"the line has the unknown key {unknown[0]!r}; remove it")
        if url not in _URLS or not isinstance(body, dict):
            raise RequestError(f"url must be {' or '.join(_URLS)}, and body an object")
        if body.get("stream"):
            raise RequestError("a batch has whole answers; remove stream")
        self._is_chat = url == _URLS[0]
        with _refusals():
            self._body = _parse(body, is_chat=self._is_chat)
            self._body.check()

    def prepare(
        self, frontend: Frontend, defaults: SamplingParams, adapter: Adapter = NO_ADAPTER
    ) -> PreparedRequest:
        """The request, with the defaults for sampling that its body does not have."""
        with _refusals():
            return self._prepare(frontend, defaults, adapter)

    def _prepare(
        self, frontend: Frontend, defaults: SamplingParams, adapter: Adapter
    ) -> PreparedRequest:
        from outrider.server.answer_request import ServedModel
        from outrider.server.routes.chat_routes import read_request
        from outrider.server.routes.completions_routes import read_requests

        model = ServedModel(name="default", sampling_defaults=_defaults(defaults))
        model.choose(None, self._body.lora_path)  # refuses it: --lora is for all lines
        body: Any = model.fill(self._body)
        read: Callable[[], list[Any]] = (
            (lambda: read_request(frontend, body))
            if self._is_chat
            else (lambda: read_requests(body))
        )
        requests = read()
        if len(requests) != 1:
            raise RequestError("a line of a batch has one prompt; write a line for each")
        return frontend.inputs.prepare(requests[0].prompt, requests[0].params, adapter)

    def report(self, request: RequestState, frontend: Frontend) -> Json:
        """The answer of `/v1/...`, or its error, inside OpenAI's envelope of a batch."""
        if not request.failure.is_none:
            from outrider.server.http_errors import failed

            error = failed(request.failure)
            return _error_report(self._custom_id, error.message, code=str(error.code))
        response = {
            "status_code": 200,
            "request_id": f"batch_req_{secrets.token_hex(12)}",
            "body": self._answer(request, frontend),
        }
        return {"custom_id": self._custom_id, "response": response, "error": None}

    def _answer(self, request: RequestState, frontend: Frontend) -> Json:
        from outrider.server.answer_request import ServedModel
        from outrider.server.request_handle import RequestHandle
        from outrider.server.routes.chat_routes import ChatWriter
        from outrider.server.routes.completions_routes import CompletionWriter

        model, body = ServedModel(name=self._body.model or "default"), self._body
        envelope = model.envelope("chatcmpl" if self._is_chat else "cmpl", body.given_name)
        any_body: Any = body
        writer: Any = (
            ChatWriter(envelope, any_body, model.parsers, frontend.tokenizer)
            if self._is_chat
            else CompletionWriter(envelope, any_body, frontend.tokenizer)
        )
        answer: Json = writer.whole(RequestHandle([request])).model_dump(exclude_unset=True)
        return answer


def refusal_report(value: Mapping[str, Any], message: str) -> Json:
    """The answer to a line that was refused, inside the same envelope."""
    name = value["custom_id"]
    return _error_report(name if isinstance(name, str) else None, message, code="invalid_request")


def _error_report(name: str | None, message: str, *, code: str) -> Json:
    error = {"code": code, "message": message}
    return {"custom_id": name, "response": None, "error": error}


def _defaults(params: SamplingParams) -> Json:
    """The sampling of lines that have none of their own. Length and form are the body's alone."""
    values = asdict(params)
    return {name: values[name] for name in _FILLED if values[name] is not None}


@contextmanager
def _refusals() -> Iterator[None]:
    """Make refusals of the server's protocol those of a line."""
    try:
        from pydantic import ValidationError

        from outrider.server.http_errors import ApiError
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"OpenAI's batch lines need the server's packages; install them with "
            f"{install_hint('serve')}"
        ) from error
    try:
        yield
    except ValidationError as error:
        first = error.errors()[0]
        raise RequestError(f"body.{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    except ApiError as error:
        raise RequestError(error.message) from error


def _parse(body: Json, *, is_chat: bool) -> "ChatRequest | CompletionRequest":
    from outrider.server.protocol.chat_protocol import ChatRequest
    from outrider.server.protocol.completions_protocol import CompletionRequest

    return (ChatRequest if is_chat else CompletionRequest)(**body)
