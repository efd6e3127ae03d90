"""The parsed flags of `churn`. No torch."""

from dataclasses import dataclass
from typing import Literal, get_args

from outrider.bench.offline.offline_args import split_list
from outrider.errors import ConfigError

Way = Literal["plain", "fixed", "adaptive"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChurnArgs:
    """Requests of one load. `rows` of them run at a time."""

    rows: tuple[int, ...]
    requests: int
    prompt: int  # mean length; lengths are between half and one and a half of it
    answer: int  # tokens of every answer
    ways: tuple[Way, ...]
    draft_steps: int
    emitted: float  # tokens of a drafted round, on average


def parse_ways(value: str) -> tuple[Way, ...]:
    """Ways to decode from a comma list."""
    known: tuple[Way, ...] = get_args(Way)
    names = split_list(value)
    if not names or not set(names) <= set(known):
        raise ConfigError(f"--ways has {value!r}; choose from {', '.join(known)}")
    return tuple(way for way in known if way in names)
