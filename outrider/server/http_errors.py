"""Errors in OpenAI's format. They hold no path of this machine and no traceback."""

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from outrider.errors import CapacityError, RequestError
from outrider.wire.failure import FailureKind, RequestFailure

RETRY_AFTER_S = 1
_MAX_REASONS = 4  # in one message

_FAILURES = {
    FailureKind.REQUEST: (400, "request_failed"),
    FailureKind.NOT_FINITE: (500, "not_finite"),
    FailureKind.INTERNAL: (500, "engine_fault"),
    FailureKind.TEMPORARY: (503, "engine_error"),
}
_FINAL_CODES = frozenset(code for status, code in _FAILURES.values() if status == 500)

_KINDS = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}

_log = logging.getLogger(__name__)


class ApiError(Exception):
    """A refusal with its HTTP status."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code

    @property
    def body(self) -> dict[str, Any]:
        """OpenAI's error object; fields without a value are null."""
        usual = "invalid_request_error" if self.status < 500 else "server_error"
        error = {
            "message": self.message,
            "type": _KINDS.get(self.status, usual),
            "param": self.param,
            "code": self.code,
        }
        return {"error": error}

    @property
    def headers(self) -> Mapping[str, str]:
        if self.status in (429, 503):
            return {"Retry-After": str(RETRY_AFTER_S)}
        # OpenAI's and Anthropic's clients retry 500, too, unless this header forbids it.
        return {"x-should-retry": "false"} if self.code in _FINAL_CODES else {}

    def response(self) -> Response:
        _log.debug("answering %d: %s", self.status, self.message)
        return Response(
            json.dumps(self.body).encode(),  # ASCII: a message may quote invalid Unicode
            status_code=self.status,
            headers=dict(self.headers),
            media_type="application/json",
        )


def restarting() -> ApiError:
    """The error of a request that cannot wait while there is no worker."""
    return ApiError(503, "the engine is being restarted; try again", code="engine_restarting")


def ending() -> ApiError:
    """The error of a new request after a signal to end."""
    return ApiError(503, "the server is shutting down; use another one", code="shutting_down")


def unresponsive(reason: str) -> ApiError:
    """The error of `/health` while the worker does not answer."""
    return ApiError(503, reason, code="engine_unresponsive")


def failed(failure: RequestFailure) -> ApiError:
    """The error of a request that the engine could not finish.

    Only a failure that another attempt can avoid has a status that clients retry.
    """
    status, code = _FAILURES[failure.kind]
    return ApiError(status, failure.reason, code=code)


def unsupported(name: str, what: str) -> ApiError:
    """The error of a field that this server does not support."""
    return ApiError(400, f"{what} is not supported yet", param=name, code="unsupported_parameter")


def install_handlers(app: FastAPI) -> None:
    """Give the errors of all routes the same format."""
    handlers: dict[Any, Any] = {
        ApiError: _answer_api_error,
        RequestError: _answer_request_error,
        CapacityError: _answer_capacity_error,
        RequestValidationError: _answer_validation_error,
        HTTPException: _answer_http_error,
        Exception: _answer_bug,
    }
    for kind, handler in handlers.items():
        app.add_exception_handler(kind, handler)


def _answer_api_error(_: Request, error: ApiError) -> Response:
    return error.response()


def _answer_request_error(_: Request, error: RequestError) -> Response:
    return ApiError(400, str(error)).response()


def _answer_capacity_error(_: Request, error: CapacityError) -> Response:
    return ApiError(429, str(error), code="queue_full").response()


def _answer_validation_error(_: Request, error: RequestValidationError) -> Response:
    errors = error.errors()
    first, place = errors[0], _place(errors[0], error.body)
    if first["type"] == "json_invalid":
        return ApiError(400, "the body is not valid JSON").response()
    if isinstance(error.body, bytes):  # left as bytes: the header says it is not JSON
        message = "the body is not taken for JSON; send the header Content-Type: application/json"
        return ApiError(400, message).response()
    if first["type"] == "extra_forbidden":
        message = f"unknown field {place!r}; remove it"
    else:
        message = "; or ".join(_reasons(errors, error.body))
    return ApiError(400, message, param=place or None).response()


def _reasons(errors: Sequence[Any], body: object) -> tuple[str, ...]:
    """Why the first wrong field is refused: one reason, or one for each type it may have.

    If the value has one of the types and only breaks a bound, the other types are left out.
    """
    field = errors[0]["loc"][:2]
    of_field = [each for each in errors if each["loc"][:2] == field]
    bounds = [each for each in of_field if not each["type"].endswith("_type")]
    reasons = [f"{_place(each, body) or 'the body'}: {each['msg']}" for each in bounds or of_field]
    return tuple(dict.fromkeys(reasons))[:_MAX_REASONS]


def _place(error: Mapping[str, Any], body: object) -> str:
    """The path of a field in the body, or the name of a parameter in the URL.

    Pydantic's location also names types of a union: skipped.
    """
    if error["loc"][0] == "query":
        return str(error["loc"][1])
    value, parts, is_missing = body, [], error["type"] == "missing"
    for part in error["loc"][1:]:
        if isinstance(value, dict) and (part in value or is_missing):
            value = value.get(part)
        elif isinstance(value, list) and isinstance(part, int):
            value = value[part]
        else:
            continue
        parts.append(str(part))
    return ".".join(parts)


def _answer_http_error(request: Request, error: HTTPException) -> Response:
    message = str(error.detail)
    if error.status_code in (404, 405):
        message = f"there is no {request.method} {request.url.path}"
    return ApiError(error.status_code, message).response()


def _answer_bug(request: Request, error: Exception) -> Response:
    _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return ApiError(500, "an internal error; the server's log says more").response()
