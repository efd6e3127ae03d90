"""How drafts fared, as servers tell it: with every answer, or in the counters of /metrics."""

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

# vLLM's names under any prefix; without `_total` as its OpenMetrics families are called.
_COUNTER = re.compile(
    r"^\w+:spec_decode_num_(drafts|draft_tokens|accepted_tokens|accepted_tokens_per_pos)(?:_total)?"
    r"(?:\{(?P<labels>.*)\})?\s+(?P<value>[-+.\w]+)(?:\s+\S+)?$"
)
_POSITION = re.compile(r'\bposition="(\d+)"')


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAcceptance:
    """Sums over rounds with a draft."""

    rounds: int
    drafted: int
    kept: int
    kept_per_position: tuple[int, ...]  # may be shorter than the drafts were

    @property
    def accept_length(self) -> float:
        """Mean tokens of a round, the bonus included."""
        return 1 + self.kept / self.rounds

    @property
    def accept_rate(self) -> float:
        """Share of the drafted tokens that were kept; 0 where nothing was drafted."""
        return self.kept / self.drafted if self.drafted else 0.0

    @property
    def kept_rates(self) -> tuple[float, ...]:
        """Share of the rounds that kept the first draft, the second, ..."""
        return tuple(kept / self.rounds for kept in self.kept_per_position)

    @classmethod
    def sum_of(cls, parts: Iterable[Self]) -> Self:
        each = list(parts)
        columns = itertools.zip_longest(*(one.kept_per_position for one in each), fillvalue=0)
        return cls(
            rounds=sum(one.rounds for one in each),
            drafted=sum(one.drafted for one in each),
            kept=sum(one.kept for one in each),
            kept_per_position=tuple(sum(column) for column in columns),
        )


def read_metrics_field(value: Any) -> tuple[ServerAcceptance, ...]:
    """vLLM's `metrics.speculative_decoding` of one answer; nothing where it says nothing."""
    if not isinstance(value, Mapping):
        return ()
    names = ("num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens")
    counts = [value.get(name) for name in names]
    if not all(isinstance(count, int) for count in counts):
        return ()
    rounds, drafted, kept = (int(count or 0) for count in counts)
    histogram = value.get("acceptance_histogram")
    return (
        ServerAcceptance(
            rounds=rounds,
            drafted=drafted,
            kept=kept,
            kept_per_position=_per_position(histogram if isinstance(histogram, list) else []),
        ),
    )


def _per_position(histogram: Sequence[int]) -> tuple[int, ...]:
    """Entry k counts rounds that kept k drafts: all from k + 1 on kept the draft at k."""
    return tuple(sum(histogram[depth:]) for depth in range(1, len(histogram)))


def read_counters(exposition: str) -> tuple[ServerAcceptance, ...]:
    """The state of the counters, over all their labels; nothing where there are none."""
    sums: dict[str, float] = {}
    positions: dict[int, float] = {}
    for line in exposition.splitlines():
        if found := _COUNTER.match(line):
            name, value = found[1], float(found["value"])
            sums[name] = sums.get(name, 0.0) + value
            for position in _POSITION.findall(found["labels"] or ""):
                positions[int(position)] = positions.get(int(position), 0.0) + value
    if "drafts" not in sums:
        return ()
    depth = max(positions, default=-1) + 1
    return (
        ServerAcceptance(
            rounds=int(sums["drafts"]),
            drafted=int(sums.get("draft_tokens", 0)),
            kept=int(sums.get("accepted_tokens", 0)),
            kept_per_position=tuple(int(positions.get(each, 0)) for each in range(depth)),
        ),
    )


def between(before: ServerAcceptance, after: ServerAcceptance) -> tuple[ServerAcceptance, ...]:
    """What was counted from one state to the other; nothing where no round passed."""
    if after.rounds <= before.rounds:
        return ()  # or the server was started anew
    old = (*before.kept_per_position, *[0] * len(after.kept_per_position))
    pairs = zip(after.kept_per_position, old, strict=False)
    return (
        ServerAcceptance(
            rounds=after.rounds - before.rounds,
            drafted=after.drafted - before.drafted,
            kept=after.kept - before.kept,
            kept_per_position=tuple(now - then for now, then in pairs),
        ),
    )
