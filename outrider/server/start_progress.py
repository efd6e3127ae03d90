"""What the terminal shows while a server starts, and the line when it is ready."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console

from outrider.server.run_server import Display
from outrider.wire.runner_facts import RunnerFacts


@contextmanager
def terminal_display(model_name: str) -> Iterator[Display]:
    """A spinner on stderr until the server is ready; then the URL on stdout."""
    with Console(stderr=True).status(f"loading {model_name}") as status:

        def loading(done: int, total: int) -> None:
            status.update(f"capturing graphs of {model_name}: {done} of {total}")

        def ready(url: str, replicas: Sequence[RunnerFacts]) -> None:
            status.stop()
            print(f"outrider serves {model_name} at {url}", flush=True)
            print(memory_line(replicas), flush=True)

        yield Display(loading=loading, ready=ready)


def memory_line(replicas: Sequence[RunnerFacts]) -> str:
    """What the engine holds, and how far its KV cache can grow; of rank 0 if there are several."""
    facts, memory = replicas[0], replicas[0].memory
    tokens = facts.num_pages * facts.host.page_size
    windows = memory.windows.num_pages * facts.host.page_size
    kept = f" ({windows} in sliding windows)" if windows else ""
    copies = f"{len(replicas)} replicas, each with " if len(replicas) > 1 else ""
    ranks = f"{len(memory.ranks)} ranks, each with " if len(memory.ranks) > 1 else ""
    return (
        f"{copies}{ranks}weights {memory.weight_bytes / 1e9:.2f} GB; KV cache of {tokens} tokens"
        f"{kept} in {memory.kv_dtype}, 0 in use, {memory.kv_bytes / 1e9:.2f} GB when full"
    )
