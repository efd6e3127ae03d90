"""How routes read JSON bodies: within limits, and only values that can be sent back as JSON."""

import json
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

from fastapi import HTTPException, Request, Response
from fastapi.routing import APIRoute

from outrider.server.body_limits import BodyLimits, read_body
from outrider.server.same_origin import is_from_other_site

_JSON = (b"content-type", b"application/json")


class JsonRoute(APIRoute):
    """A route that checks its body before it is parsed. A route without a body reads none."""

    takes_any_type = False  # whether the body is JSON whatever its header says

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        if self.body_field is None:
            return handle

        async def handle_body(request: Request) -> Response:
            limits: BodyLimits = request.app.state.body_limits
            body = await read_body(request.receive, limits)
            return await handle(JsonRequest(_typed(request, self.takes_any_type), body))

        return handle_body


class AnyTypeRoute(JsonRoute):
    """A route whose clients leave out the body's type, or send the one of forms (`curl -d`)."""

    takes_any_type = True


def _typed(request: Request, takes_any_type: bool) -> Request:
    """The request with the type of JSON, if it has none.

    Pages of other sites can send bodies without that type, and only those, without asking first.
    """
    is_typed = "content-type" in request.headers and not takes_any_type
    if is_typed or is_from_other_site(request):
        return request
    others = [each for each in request.scope["headers"] if each[0] != b"content-type"]
    return Request({**request.scope, "headers": [*others, _JSON]}, request.receive)


class JsonRequest(Request):
    """A request whose body has been read."""

    def __init__(self, request: Request, body: bytes) -> None:
        super().__init__(request.scope, request.receive)
        self._body = body

    async def json(self) -> Any:
        return parse_json(self._body)


def parse_json(body: bytes) -> Any:
    """The value of a JSON text in UTF-8. NaN, infinities and lone surrogates are refused."""
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise HTTPException(400, "the body is not valid JSON: it is not UTF-8") from None
    value = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
    # Only an escape can make a lone surrogate: the decoder refuses it as bytes.
    if ("\\ud" in text or "\\uD" in text) and not _is_unicode(value):
        raise HTTPException(400, "a text has half a surrogate pair; send valid Unicode")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise HTTPException(400, f"the body is not valid JSON: {name} is not a JSON number")


def _finite(digits: str) -> float:
    value = float(digits)
    if value in (float("inf"), float("-inf")):
        raise HTTPException(400, f"the number {digits[:32]} is too large")
    return value


def _is_unicode(value: Any) -> bool:
    """Whether all strings, keys included, can be encoded. C code does the walk."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True
