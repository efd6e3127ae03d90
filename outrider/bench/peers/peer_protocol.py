"""What the benchmark needs of an engine that is loaded and ready."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from outrider.bench.offline.run_trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerModel:
    """The weights that all engines load."""

    folder: Path
    gguf: Path | None  # the file that they are from; None for a folder of the hub


class Peer(Protocol):
    """Owns a model in memory. Dropping the last reference must free it."""

    def run(self, prompts: Sequence[tuple[int, ...]], *, max_tokens: int) -> Trace:
        """Continue all prompts together, greedily, each by exactly `max_tokens` tokens.

        Prompts have equal lengths; no token ends an answer early. Every step that emits is timed.
        """
        ...
