"""What a load of requests that come and go is made of. No torch."""

from dataclasses import dataclass
from typing import Literal, get_args

from outrider.bench.offline.offline_args import split_list
from outrider.errors import ConfigError

Way = Literal["plain", "fixed", "adaptive"]
WAYS: tuple[Way, ...] = get_args(Way)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChurnWork:
    """As many requests for each number of rows; `rows` of them run at a time."""

    rows: tuple[int, ...]
    requests: int
    answer: int  # tokens of every answer
    ways: tuple[Way, ...]

    def num_warm(self, rows: int) -> int:
        """Requests that run before those that count: they capture shapes and fill caches."""
        return max(2 * rows, self.requests // 4)


def parse_ways(value: str) -> tuple[Way, ...]:
    """Ways to decode from a comma list."""
    names = split_list(value)
    if not names or not set(names) <= set(WAYS):
        raise ConfigError(f"--ways has {value!r}; choose from {', '.join(WAYS)}")
    return tuple(way for way in WAYS if way in names)
