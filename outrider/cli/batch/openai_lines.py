"""Lines of OpenAI's batch files: {"custom_id", "method", "url", "body"}, answered in its format."""

import secrets
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from outrider.config.install_hint import install_hint
from outrider.errors import ConfigError, RequestError
from outrider.frontend.frontend import Frontend
from outrider.frontend.request_state import PreparedRequest, RequestState

if TYPE_CHECKING:
    from outrider.server.protocol.chat_protocol import ChatRequest
    from outrider.server.protocol.completions_protocol import CompletionRequest

Json = dict[str, Any]

_KEYS = frozenset({"custom_id", "method", "url", "body"})
_URLS = ("/v1/chat/completions", "/v1/completions")


def is_openai_line(value: object) -> bool:
    return isinstance(value, Mapping) and {"custom_id", "url", "body"} <= value.keys()


class OpenAiLine:
    """One request of a batch file, and how its answer is written."""

    def __init__(self, value: Mapping[str, Any]) -> None:
        url, body = value["url"], value["body"]
        if unknown := sorted(value.keys() - _KEYS):
            raise RequestError(f"the line has the unknown key {unknown[0]!r}; remove it")
        if url not in _URLS or not isinstance(body, dict):
            raise RequestError(f"url must be {' or '.join(_URLS)}, and body an object")
        if body.get("stream"):
            raise RequestError("a batch has whole answers; remove stream")
        self._is_chat = url == _URLS[0]
        self._body = _parse(body, is_chat=self._is_chat)
        self._body.check()

    def prepare(self, frontend: Frontend) -> PreparedRequest:
        from outrider.server.routes.chat_routes import read_request
        from outrider.server.routes.completions_routes import read_requests

        body: Any = self._body
        read: Callable[[], list[Any]] = (
            (lambda: read_request(frontend, body))
            if self._is_chat
            else (lambda: read_requests(body))
        )
        requests = read()
        if len(requests) != 1:
            raise RequestError("a line of a batch has one prompt; write a line for each")
        return frontend.inputs.prepare(requests[0].prompt, requests[0].params)

    def report(self, request: RequestState, frontend: Frontend) -> Json:
        """The answer of `/v1/...` inside OpenAI's envelope of a batch."""
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
        answer = writer.whole(RequestHandle([request])).model_dump(exclude_unset=True)
        response = {
            "status_code": 200,
            "request_id": f"batch_req_{secrets.token_hex(12)}",
            "body": answer,
        }
        return {"response": response, "error": None}


def _parse(body: Json, *, is_chat: bool) -> "ChatRequest | CompletionRequest":
    try:
        from pydantic import ValidationError

        from outrider.server.http_errors import ApiError
        from outrider.server.protocol.chat_protocol import ChatRequest
        from outrider.server.protocol.completions_protocol import CompletionRequest
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"OpenAI's batch lines need the server's packages; install them with "
            f"{install_hint('serve')}"
        ) from error
    try:
        return (ChatRequest if is_chat else CompletionRequest)(**body)
    except ValidationError as error:
        first = error.errors()[0]
        raise RequestError(f"body.{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    except ApiError as error:
        raise RequestError(error.message) from error
