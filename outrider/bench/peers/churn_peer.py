"""What a peer gets to run a load, and what the benchmark needs of it. No torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerDraft:
    """The head that drafts, and the size of its trees. No folder: plain decoding."""

    folder: str
    kind: str  # of head, such as eagle3 or dflash; "" without one
    steps: int
    topk: int
    nodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLimits:
    """The limits that ours has, too."""

    rows: int  # requests at a time, of the largest load
    max_tokens: int  # of every answer
    context: int  # tokens of the longest prompt and its answer


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLoad:
    """The first requests of the task, of which `rows` are in the engine at a time."""

    rows: int
    requests: int
    warm: int  # requests that run before those that count


@dataclass(frozen=True, slots=True, kw_only=True)
class ChurnTask:
    """The loads on one peer: the same weights, prompts and limits as ours."""

    engine: str
    folder: str
    dtype: str
    draft: PeerDraft
    limits: PeerLimits
    prompts: tuple[tuple[int, ...], ...]  # of all requests, in their order
    loads: tuple[PeerLoad, ...]


class ChurnPeer(Protocol):
    """Owns a model in memory."""

    def answer(self, prompts: Sequence[Sequence[int]], *, rows: int) -> int:
        """Answer all prompts greedily, `rows` at a time; returns the tokens of all answers.

        No token ends an answer. A request comes when another one ends, if the peer can do that.
        """
        ...

    def close(self) -> None:
        """End the processes of the peer."""
        ...
