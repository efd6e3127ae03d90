"""How long a prompt that another server computed takes to its first token, by its length."""

import json
import os
import random
import secrets
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

_MAIN = "from outrider.cli.main import main; main()"
_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferTime:
    """Seconds of one prompt, and the bytes of its pages."""

    num_tokens: int
    prefill_s: float  # on the prefill server
    first_token_s: float  # on the decode server, from the end of the prefill on
    alone_s: float  # to the first token of a decode server that computes the prompt itself
    num_bytes: int


def time_transfers(
    model: str, backend: str, lengths: Sequence[int], flags: Sequence[str]
) -> Iterator[TransferTime]:
    """Times with two servers of this machine."""
    key, port = {"OUTRIDER_RANKS_KEY": secrets.token_hex(16)}, _free_port()
    role = ("--disaggregation-transfer-backend", backend)
    with ExitStack() as held:
        prefill, decode = (
            held.enter_context(_server(model, (*role, "--disaggregation-mode", *mode, *flags), key))
            for mode in (
                ("prefill", "--disaggregation-bootstrap-port", str(port)),
                ("decode",),
            )
        )
        info = json.loads(urllib.request.urlopen(decode + "/server_info").read())
        token_bytes = info["ranks"][0]["kv_bytes"] / info["max_total_num_tokens"]
        _time_prompt(prefill, decode, 64)  # connections and kernels
        for length in lengths:
            times = [_time_prompt(prefill, decode, length) for _ in range(3)]
            prefill_s, first_token_s, alone_s = (
                sorted(each)[1] for each in zip(*times, strict=True)
            )
            yield TransferTime(
                num_tokens=length,
                prefill_s=prefill_s,
                first_token_s=first_token_s,
                alone_s=alone_s,
                num_bytes=int(length * token_bytes),
            )


def _time_prompt(prefill: str, decode: str, length: int) -> tuple[float, float, float]:
    """Seconds on the prefill server, on the decode server after it, and on the latter alone."""
    prompt = [random.randrange(100, 2000) for _ in range(length)]
    other = [random.randrange(100, 2000) for _ in range(length)]
    params = {"kv_transfer_params": {"do_remote_decode": True}}
    prefill_s, answer = _post(prefill, {"prompt": prompt, "max_tokens": 1, **params})
    params = {"kv_transfer_params": answer["kv_transfer_params"]}
    first_token_s, _ = _post(decode, {"prompt": prompt, "max_tokens": 1, **params})
    alone_s, _ = _post(decode, {"prompt": other, "max_tokens": 1})
    return prefill_s, first_token_s, alone_s


def _post(url: str, body: dict[str, Any]) -> tuple[float, dict[str, Any]]:
    request = urllib.request.Request(
        url + "/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    began_s = time.perf_counter()
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
        answer: dict[str, Any] = json.loads(response.read())
    return time.perf_counter() - began_s, answer


@contextmanager
def _server(model: str, flags: Sequence[str], environment: dict[str, str]) -> Iterator[str]:
    command = [sys.executable, "-c", _MAIN, "serve", model, "--port", "0", *flags]
    process = subprocess.Popen(
        [*command, "--no-access-log", "--log-level", "warning"],
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
