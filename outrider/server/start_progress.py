"""What the terminal shows while a server starts, and the line when it is ready."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from outrider.server.run_server import Display


@contextmanager
def terminal_display(model_name: str) -> Iterator[Display]:
    """A spinner on stderr until the server is ready; then the URL on stdout."""
    with Console(stderr=True).status(f"loading {model_name}") as status:

        def loading(done: int, total: int) -> None:
            status.update(f"capturing graphs of {model_name}: {done} of {total}")

        def ready(url: str) -> None:
            status.stop()
            print(f"outrider serves {model_name} at {url}", flush=True)

        yield Display(loading=loading, ready=ready)
