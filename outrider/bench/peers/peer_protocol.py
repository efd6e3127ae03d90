"""What the benchmark needs of an engine that is loaded and ready."""

from collections.abc import Sequence
from typing import Protocol

from outrider.bench.offline.run_trace import Trace


class Peer(Protocol):
    """Owns a model in memory. Dropping the last reference must free it."""

    def run(self, prompts: Sequence[tuple[int, ...]], *, max_tokens: int) -> Trace:
        """Continue all prompts together, greedily, each by exactly `max_tokens` tokens.

        Prompts have equal lengths; no token ends an answer early. Every step that emits is timed.
        """
        ...
