"""The parsed flags of `outrider bench offline`. No torch."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import get_args

from outrider.bench.peers.peer_catalogue import PeerPackage
from outrider.config.engine_config import Dtype
from outrider.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Tokens of every prompt and of every answer."""

    prompt: int
    answer: int

    def __post_init__(self) -> None:
        if self.prompt < 1:
            raise ConfigError(f"--prompt-tokens must be at least 1, got {self.prompt}")
        if self.answer < 2:  # one comes from the prompt and would leave nothing to decode
            raise ConfigError(f"--max-tokens must be at least 2, got {self.answer}")

    @property
    def mean_context(self) -> float:
        """Tokens cached on average while an answer grows."""
        return self.prompt + self.answer / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineArgs:
    """The engines to measure and the work to give them."""

    dtypes: tuple[Dtype, ...]
    batches: tuple[int, ...]
    lengths: Lengths
    peers: tuple[PeerPackage, ...]
    repetitions: int
    has_busy_neighbour: bool


def parse_dtypes(values: Iterable[str]) -> tuple[Dtype, ...]:
    """Types of weights from flags that may each be a comma list."""
    known: dict[str, Dtype] = {name: name for name in get_args(Dtype)}
    names = [name for value in values for name in split_list(value)]
    for name in names:
        if name not in known:
            raise ConfigError(f"--dtype has {name!r}; use {', '.join(known)}")
    if not names:
        raise ConfigError("--dtype is empty; use float32, int8 or both as float32,int8")
    return tuple(dict.fromkeys(known[name] for name in names))


def parse_batches(value: str) -> tuple[int, ...]:
    """Batch sizes from a comma list, in the order given."""
    return parse_counts("--batch", value)


def parse_rows(value: str) -> tuple[int, ...]:
    """Numbers of rows from a comma list, in the order given."""
    return parse_counts("--rows", value)


def parse_counts(flag: str, value: str) -> tuple[int, ...]:
    """Numbers of 1 or more from the comma list of a flag, in the order given."""
    names = split_list(value)
    if not names or not all(name.isascii() and name.isdigit() and int(name) for name in names):
        raise ConfigError(f"{flag} has {value!r}; use numbers of 1 or more, such as 1,8,32")
    return tuple(dict.fromkeys(map(int, names)))


def split_list(value: str) -> tuple[str, ...]:
    """The parts of a comma list; nothing for an empty one."""
    return tuple(part.strip() for part in value.split(",") if part.strip())
