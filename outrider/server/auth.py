"""An API key for all routes but those of probes and the files of the page."""

import hmac

from starlette._utils import get_route_path
from starlette.types import ASGIApp, Receive, Scope, Send

from outrider.server.http_errors import ApiError

# Load balancers and probes have no key; the page asks the user for it.
_OPEN = frozenset({"/health", "/ping", "/version", "/"})
_OPEN_FOLDER = "/page/"
_SCHEME = b"bearer "


class KeyMiddleware:
    """Owns the key. Comparisons take constant time, so timing reveals nothing about it."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._key = key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # The path as the router sees it: `scope["path"]` begins with the prefix of --root-path.
        if scope["type"] != "http" or _is_open(get_route_path(scope)) or self._is_known(scope):
            await self._app(scope, receive, send)
            return
        error = ApiError(
            401,
            "the API key is missing or wrong; send it as a bearer token",
            code="invalid_api_key",
        )
        await error.response()(scope, receive, send)

    def _is_known(self, scope: Scope) -> bool:
        headers = dict(scope["headers"])
        sent = headers.get(b"authorization", b"")
        is_bearer = sent[: len(_SCHEME)].lower() == _SCHEME
        if hmac.compare_digest(sent[len(_SCHEME) :].strip(), self._key) and is_bearer:
            return True
        # Anthropic's clients send the key in a header of its own.
        return hmac.compare_digest(headers.get(b"x-api-key", b"").strip(), self._key)


def _is_open(path: str) -> bool:
    return path in _OPEN or path.startswith(_OPEN_FOLDER)
