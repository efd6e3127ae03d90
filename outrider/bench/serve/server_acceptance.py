"""How many drafts were accepted, as servers report it: with every answer, or by /metrics."""

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
    """Counts over all rounds that had a draft."""

    rounds: int
    drafted: int
    accepted: int
    accepted_per_position: tuple[int, ...]  # may have fewer positions than the longest draft

    @property
    def accept_length(self) -> float:
        """Mean tokens of a round, the bonus included."""
        return 1 + self.accepted / self.rounds

    @property
    def accept_rate(self) -> float:
        """Share of the drafted tokens that were accepted; 0 where nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def accepted_rates(self) -> tuple[float, ...]:
        """Share of the rounds that accepted the first draft, the second, ..."""
        return tuple(count / self.rounds for count in self.accepted_per_position)

    @classmethod
    def sum_of(cls, parts: Iterable[Self]) -> Self:
        each = list(parts)
        columns = itertools.zip_longest(*(one.accepted_per_position for one in each), fillvalue=0)
        return cls(
            rounds=sum(one.rounds for one in each),
            drafted=sum(one.drafted for one in each),
            accepted=sum(one.accepted for one in each),
            accepted_per_position=tuple(sum(column) for column in columns),
        )


def read_metrics_field(value: Any) -> tuple[ServerAcceptance, ...]:
    """vLLM's `metrics.speculative_decoding` of one answer; empty where the field is missing."""
    if not isinstance(value, Mapping):
        return ()
    names = ("num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens")
    counts = [value.get(name) for name in names]
    if not all(isinstance(count, int) for count in counts):
        return ()
    rounds, drafted, accepted = (int(count or 0) for count in counts)
    histogram = value.get("acceptance_histogram")
    return (
        ServerAcceptance(
            rounds=rounds,
            drafted=drafted,
            accepted=accepted,
            accepted_per_position=_per_position(histogram if isinstance(histogram, list) else []),
        ),
    )


def _per_position(histogram: Sequence[int]) -> tuple[int, ...]:
    """Accepted drafts by position; entry k of the histogram counts rounds that accepted k drafts.

    The draft at position k was accepted in all rounds that accepted k + 1 drafts or more.
    """
    return tuple(sum(histogram[depth:]) for depth in range(1, len(histogram)))


def read_counters(exposition: str) -> tuple[ServerAcceptance, ...]:
    """The counters, summed over all labels; empty where there are none."""
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
            accepted=int(sums.get("accepted_tokens", 0)),
            accepted_per_position=tuple(int(positions.get(each, 0)) for each in range(depth)),
        ),
    )


def between(before: ServerAcceptance, after: ServerAcceptance) -> tuple[ServerAcceptance, ...]:
    """The difference of two readings of the counters; empty where no round passed."""
    if after.rounds <= before.rounds:
        return ()  # no round, or the server was restarted
    old = (*before.accepted_per_position, *[0] * len(after.accepted_per_position))
    pairs = zip(after.accepted_per_position, old, strict=False)
    return (
        ServerAcceptance(
            rounds=after.rounds - before.rounds,
            drafted=after.drafted - before.drafted,
            accepted=after.accepted - before.accepted,
            accepted_per_position=tuple(now - then for now, then in pairs),
        ),
    )
