"""Small web servers of this machine: of files, and of answers that a test writes itself."""

import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class _Files(SimpleHTTPRequestHandler):
    def log_message(self, *_) -> None:
        pass


@contextmanager
def serving(handler, context: ssl.SSLContext | None = None) -> Iterator[str]:
    """The address of a server, until the end of the block."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http{'s' if context else ''}://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def serving_files(folder: Path) -> Iterator[str]:
    with serving(partial(_Files, directory=str(folder))) as address:
        yield address


def answering(answer: Callable[[BaseHTTPRequestHandler], None]) -> type[BaseHTTPRequestHandler]:
    """A handler whose GET is the given function."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        def log_message(self, *_) -> None:
            pass

    return Handler
