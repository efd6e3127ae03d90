"""What a peer gets to run a load, and what the benchmark needs of it. No torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerDraft:
    """The EAGLE-3 head that drafts, and the size of its trees. No folder: plain decoding."""

    folder: str
    steps: int
    topk: int
    nodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLimits:
    """The limits that ours has, too."""

    rows: int  # requests at a time
    max_tokens: int  # of every answer
    context: int  # tokens of the longest prompt and its answer


@dataclass(frozen=True, slots=True, kw_only=True)
class ChurnTask:
    """One load on one peer: the same weights, prompts and limits as ours."""

    engine: str
    folder: str
    dtype: str
    draft: PeerDraft
    limits: PeerLimits
    prompts: tuple[tuple[int, ...], ...]  # of all requests, in their order
    num_warm: int  # of the first prompts, which run once before


class ChurnPeer(Protocol):
    """Owns a model in memory."""

    def answer(self, prompts: Sequence[Sequence[int]]) -> int:
        """Answer all prompts greedily; returns the tokens of all answers. No token ends one."""
        ...

    def close(self) -> None:
        """End the processes of the peer."""
        ...
