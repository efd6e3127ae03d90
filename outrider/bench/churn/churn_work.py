"""What a load of requests that come and go is made of. No torch."""

from dataclasses import dataclass
from typing import Literal, get_args

from outrider.bench.offline.offline_args import split_list
from outrider.errors import ConfigError

Way = Literal["plain", "fixed", "adaptive"]
WAYS: tuple[Way, ...] = get_args(Way)
PER_ROW = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ChurnWork:
    """A load for each number of rows: so many of its requests are in an engine at a time."""

    rows: tuple[int, ...]
    requests: int  # of a load, at most
    per_row: int = PER_ROW  # requests of a load for each row, at most
    answer: int  # tokens of every answer
    ways: tuple[Way, ...]

    @property
    def most_rows(self) -> int:
        """Rows of the engine, which runs all loads."""
        return max(self.rows)

    def num_requests(self, rows: int) -> int:
        """Fewer for few rows, which would take the most time."""
        return min(self.requests, self.per_row * rows)

    def num_warm(self, rows: int) -> int:
        """Requests that run before those that count: they capture shapes and fill caches."""
        return max(2 * rows, self.num_requests(rows) // 4)


def parse_ways(value: str) -> tuple[Way, ...]:
    """Ways to decode from a comma list."""
    names = split_list(value)
    if not names or not set(names) <= set(WAYS):
        raise ConfigError(f"--ways has {value!r}; choose from {', '.join(WAYS)}")
    return tuple(way for way in WAYS if way in names)
