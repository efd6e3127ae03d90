"""Odd JSON into every route: an answer or a refusal, never a server error, never a hang."""

import copy
import json
from functools import cache
from random import Random
from typing import Any

import httpx
from support.route_bodies import BASES, fields_of

from hostile.odd_values import damage_json, nested, odd_value
from hostile.parts import CaseReport
from hostile.served_bytes import ByteServer, byte_server

NUM_REQUESTS = 40
TIMEOUT_S = 60.0
# What a page or an operator opens; they take no body, and may get one.
OTHERS = (
    "/health",
    "/metrics",
    "/version",
    "/v1/models",
    "/invariants",
    "/flush_cache",
    "/nothing",
)


def run_case(seed: int) -> CaseReport:
    """Some requests, one after the other; at the end a known one must be answered right."""
    rng, report, server = Random(seed), CaseReport(), byte_server()
    for index in range(NUM_REQUESTS):
        method, path, body = _draw(rng, server)
        what = f"request {index}: {method} {path} {body[:300]!a}"
        try:
            response = _send(server, method, path, body)
        except httpx.TimeoutException:
            report.failures.append(f"no answer within {TIMEOUT_S} s: {what}")
            continue
        except httpx.TransportError as error:
            report.failures.append(f"no answer ({error!r}): {what}")
            continue
        report.counts[f"status {response.status_code // 100}xx"] += 1
        if wrong := _fault(response):
            report.failures.append(f"{wrong}: {what}")
    report.failures += server.new_tracebacks()
    if server.ask_known() != server.right_answer:
        report.failures.append("a known request is answered differently afterwards")
    return report


def _fault(response: httpx.Response) -> str:
    """What is wrong with an answer to anything; nothing if it is well."""
    if response.status_code >= 500:
        return f"status {response.status_code} {response.text[:300]}"
    is_stream = response.headers.get("content-type", "").startswith("text/event-stream")
    if is_stream and '"server_error"' in response.text:
        return f"an error in the stream: {response.text[-300:]}"
    if response.status_code >= 400 and not response.json()["error"]["message"]:
        return f"status {response.status_code} without a message"
    return ""


def _send(server: ByteServer, method: str, path: str, body: bytes) -> httpx.Response:
    headers = {"Content-Type": "application/json"}
    return httpx.request(
        method, server.process.url + path, content=body, headers=headers, timeout=TIMEOUT_S
    )


def _draw(rng: Random, server: ByteServer) -> tuple[str, str, bytes]:
    """The method, path and body of one request."""
    if rng.random() < 0.1:
        return rng.choice(["GET", "POST", "PUT", "DELETE"]), rng.choice(OTHERS), _raw_body(rng)
    path = rng.choice(list(BASES))
    if rng.random() < 0.15:
        return "POST", path, _raw_body(rng)
    body: Any = copy.deepcopy(BASES[path])
    for name in rng.choices(_fields(server, path), k=rng.choice([0, 1, 1, 2])):
        body[name] = nested(rng) if rng.random() < 0.1 else odd_value(rng)
    for _ in range(rng.choice([0, 0, 1, 2])):
        body, _ = damage_json(rng, body)
    return "POST", path, json.dumps(body).encode()


def _raw_body(rng: Random) -> bytes:
    """Bytes that are not JSON, or JSON that is not meant to be read."""
    depth = rng.choice([10, 64, 65, 5000, 300_000])
    return rng.choice(
        [
            b"",
            b"{",
            b"null",
            b'"',
            b"\xff\xfe{}",
            b"\xef\xbb\xbf{}",
            b"[" * depth,
            b'{"a":' * depth,
            b'{"prompt": "a", "prompt": "b", "max_tokens": 1}',
            b'"' + b"[]" * 65 + b'","' + b'\\"' * 20_000,
            b"[" + b"1," * rng.choice([10, 200_000]) + b"1]",
            b'{"prompt": "' + b"a" * rng.choice([10_000, 1_000_000]) + b'"}',
            b'{"prompt": ' + b"9" * rng.choice([400, 5000]) + b"}",
            b'{"max_tokens": 1e' + b"9" * 40 + b"}",
            b'{"prompt": "\\ud800"}',
            b'{"prompt": "\\u0000"}',
            b"{" + b",".join(b'"k%d": 1' % i for i in range(20_000)) + b"}",
            rng.randbytes(rng.choice([3, 300, 30_000])),
        ]
    )


def _fields(server: ByteServer, path: str) -> list[str]:
    return fields_of(_schema(server.process.url), path)


@cache
def _schema(url: str) -> dict[str, Any]:
    schema: dict[str, Any] = httpx.get(f"{url}/openapi.json", timeout=TIMEOUT_S).json()
    return schema
