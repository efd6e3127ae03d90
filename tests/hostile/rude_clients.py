"""Clients that break off: they leave, send half of a request, or do not read."""

import json
import socket
from contextlib import suppress
from random import Random

_BODY = {"prompt": "the rider", "max_tokens": 400, "ignore_eos": True, "stream": True}


def draw_rudeness(rng: Random, url: str) -> tuple[str, socket.socket]:
    """One rude client, connected, and what it did. It is closed by the caller, or never."""
    host, port = url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=10)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    content = json.dumps(_BODY | {"logprobs": 5, "n": rng.choice([1, 3])}).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\n\r\n"
    ).encode()
    kind = rng.choice(["leaves", "resets", "half headers", "half body", "reads nothing", "noise"])
    with suppress(OSError):  # the server may close first
        if kind == "half headers":
            connection.sendall(head[: rng.randint(1, len(head) - 3)])
        elif kind == "half body":
            connection.sendall(head + content[: rng.randint(0, len(content) - 1)])
        elif kind == "noise":
            connection.sendall(rng.randbytes(rng.choice([1, 100, 20_000])))
        else:
            connection.sendall(head + content)
    if kind == "resets":
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    if kind in ("leaves", "resets"):
        with suppress(OSError):
            connection.recv(rng.choice([1, 500]))
        connection.close()
    return kind, connection
