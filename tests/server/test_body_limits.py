"""Bodies are scanned in linear time, and only where a route takes one from a client with a key."""

import asyncio
import contextlib
import json

import pytest
from fastapi import APIRouter, FastAPI

from outrider.server import body_limits
from outrider.server.auth import KeyMiddleware
from outrider.server.body_limits import BodyLimits, check_marks, read_body
from outrider.server.http_errors import ApiError, install_handlers
from outrider.server.json_body import JsonRoute

LIMITS = BodyLimits()
PAIRS = b'"' + b"[]" * 65 + b'","' + b'\\"' * 20_000  # a string without an end
FREEZERS = {
    "quotes that are escaped": PAIRS,
    "backslashes": b"[]" * 65 + b'"' + b"\\" * 60_001,
    "escapes and letters": b"[]" * 65 + b'"' + b'a\\"' * 20_000,
    "one long string": b"[]" * 65 + b'"' + b"[" * 60_000,
    "short strings": b"[]" * 65 + b'""' * 20_000,
    "brackets": b"[]" * 30_000,
}


class CountingPattern:
    """A pattern that counts the characters it looks at: those it passes over, and one more."""

    def __init__(self, pattern):
        self._pattern = pattern
        self.num_seen = 0

    def _count(self, found, position, end):
        self.num_seen += (found.end() if found else end) - position + 1
        return found

    def search(self, body, position):
        return self._count(self._pattern.search(body, position), position, len(body))

    def match(self, body, position):
        return self._count(self._pattern.match(body, position), position, len(body))


@pytest.mark.parametrize("name", FREEZERS)
def test_the_scan_looks_at_every_character_a_few_times_at_most(monkeypatch, name):
    body, patterns = FREEZERS[name], []
    for pattern in ("_MARK", "_IN_STRING"):
        patterns.append(CountingPattern(getattr(body_limits, pattern)))
        monkeypatch.setattr(body_limits, pattern, patterns[-1])
    check_marks(body, LIMITS)
    assert sum(pattern.num_seen for pattern in patterns) <= 3 * len(body) + 3
    assert patterns[0].num_seen


@pytest.mark.parametrize("name", FREEZERS)
def test_the_longest_hostile_body_is_scanned(name):
    body = FREEZERS[name]
    body += body[-30_000:] * ((LIMITS.body_bytes - len(body)) // 30_000)
    with contextlib.suppress(ApiError):
        check_marks(body, LIMITS)  # a quadratic scan takes hours


@pytest.mark.parametrize(
    ("body", "is_deep"),
    [
        (b"[[[]]]", False),
        (b"[[[[]]]]", True),
        (b'["[[[[[["]', False),
        (b'["\\"[[[[[["]', False),
        (b'["\\\\",[[[[]]]]', True),
        (b'{"a":[{"b":[1]}]}', True),
        (b"[],[],[],[],[]", False),
        (b'["' + b"a\\n" * 5000 + b'",[[[', True),
    ],
)
def test_depth_is_counted_outside_of_strings(body, is_deep):
    assert refusal(body, depth=3) == ("nests deeper than 3" if is_deep else "")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"[1,1,1,1]", ""),
        (b"[1,1,1,1,1]", "more than 3 commas"),
        (b"[1,1,1,1,1", "more than 3 commas"),
        (b'"," ",,,,,,,,,,"', ""),
        (b'{"a":{"a":{}}}', ""),
        (b'{"a":{"a":{"a":{}}}}', "more than 8 strings"),
    ],
)
def test_values_are_counted_outside_of_strings(body, reason):
    found = refusal(body, commas=3, marks=8)
    assert reason in found
    assert bool(reason) == bool(found)


def refusal(body, **limits):
    try:
        check_marks(body, BodyLimits(**limits))
    except ApiError as error:
        return error.message.removeprefix("the body ").removesuffix(" levels")
    return ""


def answer(app, method, path, body, *headers):
    """The status of one request, and how many messages of its body were read."""
    sent, num_read = [], 0

    async def receive():
        nonlocal num_read
        num_read += 1
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": b"",
        "headers": [(b"content-type", b"application/json"), *headers],
    }
    asyncio.run(app(scope, receive, send))
    return sent[0]["status"], num_read


@pytest.fixture(name="app")
def keyed_app():
    app, router = FastAPI(), APIRouter(route_class=JsonRoute)
    app.state.body_limits = LIMITS

    @router.get("/health")
    async def health() -> str:
        return "well"

    @router.post("/flush_cache")
    async def flush() -> str:
        return "flushed"

    @router.post("/generate")
    async def generate(body: dict[str, int]) -> int:
        return len(body)

    app.include_router(router)
    install_handlers(app)
    app.add_middleware(KeyMiddleware, key="secret")
    return app


KEY = (b"authorization", b"Bearer secret")


def test_only_a_route_with_a_body_and_a_client_with_the_key_have_the_body_read(app):
    assert answer(app, "POST", "/health", PAIRS) == (405, 0)
    assert answer(app, "GET", "/health", PAIRS) == (200, 0)
    assert answer(app, "POST", "/nothing", PAIRS, KEY) == (404, 0)
    assert answer(app, "POST", "/flush_cache", PAIRS, KEY) == (200, 0)
    assert answer(app, "POST", "/generate", PAIRS) == (401, 0)
    assert answer(app, "POST", "/generate", PAIRS, KEY) == (400, 1)
    assert answer(app, "POST", "/generate", b"{}", KEY) == (200, 1)


def test_every_route_of_the_server_with_a_body_checks_it(server):
    paths = server.get("/openapi.json").json()["paths"]
    with_body = [path for path in paths if "requestBody" in paths[path].get("post", {})]
    assert len(with_body) >= 6
    for path in with_body:
        response = server.post(path, json.loads("[" * 70 + "]" * 70))
        assert "nests deeper" in response.json()["error"]["message"], path


def test_a_body_that_does_not_come_is_given_up():
    async def receive_nothing():
        await asyncio.sleep(60)

    with pytest.raises(ApiError, match="the body took too long") as refused:
        asyncio.run(read_body(receive_nothing, BodyLimits(read_s=0.05)))
    assert refused.value.status == 408
