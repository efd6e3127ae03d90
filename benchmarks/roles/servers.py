"""Servers of this machine for the benchmarks of roles: one that does all, or one for each role."""

import json
import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

_MAIN = "from outrider.cli.main import main; main()"
_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Addresses. One server that does all has both."""

    prefill: str
    decode: str


@contextmanager
def one_server(model: str, flags: Sequence[str]) -> Iterator[Pair]:
    """A server that computes its prompts itself."""
    with _server(model, flags, {}) as url:
        yield Pair(prefill=url, decode=url)


@contextmanager
def two_servers(model: str, backend: str, flags: Sequence[str]) -> Iterator[Pair]:
    """A server for prompts, and one for answers."""
    key, port = {"OUTRIDER_RANKS_KEY": secrets.token_hex(16)}, str(_free_port())
    role = (*flags, "--disaggregation-transfer-backend", backend, "--disaggregation-mode")
    prefill = (*role, "prefill", "--disaggregation-bootstrap-port", port)
    with _server(model, prefill, key) as first, _server(model, (*role, "decode"), key) as second:
        yield Pair(prefill=first, decode=second)


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstToken:
    """How a prompt came to its first token."""

    prefill_s: float  # on the prefill server; 0 where one server does all
    decode_s: float  # then on the decode server, to the first token
    cached_tokens: int  # whose KV the decode server had


def ask_first_token(pair: Pair, prompt: list[int]) -> FirstToken:
    """Let one server compute a prompt, and the other its first token."""
    body, prefill_s = {"prompt": prompt, "max_tokens": 1}, 0.0
    if pair.prefill != pair.decode:
        params = {"kv_transfer_params": {"do_remote_decode": True}}
        prefill_s, answer = post(pair.prefill, {**body, **params})
        body |= {"kv_transfer_params": answer["kv_transfer_params"]}
    decode_s, answer = post(pair.decode, body)
    cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return FirstToken(prefill_s=prefill_s, decode_s=decode_s, cached_tokens=cached)


def get(url: str) -> dict[str, Any]:
    """The JSON of a route."""
    with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as response:
        answer: dict[str, Any] = json.loads(response.read())
    return answer


def post(url: str, body: dict[str, Any]) -> tuple[float, dict[str, Any]]:
    """Seconds until the whole answer is here, and the answer."""
    began_s = time.perf_counter()
    with urllib.request.urlopen(_request(url, body), timeout=_TIMEOUT_S) as response:
        answer: dict[str, Any] = json.loads(response.read())
    return time.perf_counter() - began_s, answer


def stream_times(url: str, body: dict[str, Any]) -> Iterator[float]:
    """When each event of a streamed answer came, by `time.perf_counter`."""
    request = _request(url, {**body, "stream": True})
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
        for line in response:
            if line.startswith(b"data: {"):
                yield time.perf_counter()


def _request(url: str, body: dict[str, Any]) -> urllib.request.Request:
    headers = {"Content-Type": "application/json"}
    return urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(), headers)


@contextmanager
def _server(model: str, flags: Sequence[str], environment: dict[str, str]) -> Iterator[str]:
    command = [sys.executable, "-c", _MAIN, "serve", model, "--port", "0", *flags]
    process = subprocess.Popen(
        [*command, "--no-access-log", "--log-level", "warning", "--shutdown-grace", "1"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline().strip()
        if " at http" not in line:
            raise SystemExit(f"a server did not start: {line or 'see its messages'}")
        yield line.rpartition(" ")[2]
    finally:
        process.terminate()
        process.wait()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
