"""The parsed flags of `never-slower`: the loads, their length and their order. No torch."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from outrider.bench.offline.offline_args import parse_counts, split_list
from outrider.errors import ConfigError

LoadKind = Literal["steady", "churn"]
KINDS: tuple[LoadKind, ...] = get_args(LoadKind)
# Numbers of rows in the order of importance: a run that is short of time leaves out the last ones.
_FIRST_ROWS = (1, 64, 8, 32, 256, 128, 16, 4, 2)
_ROWS_OF_TWICE = 128  # rows whose loads take twice the seconds of a load of few rows


@dataclass(frozen=True, slots=True, kw_only=True)
class TextLevel:
    """How often drafts are accepted: each draft after an accepted one, with this chance."""

    name: str
    chance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlace:
    """Loads that one plain load is compared with: as many rows, of the same kind."""

    rows: int
    kind: LoadKind


@dataclass(frozen=True, slots=True, kw_only=True)
class NeverLimits:
    """How long prompts, answers and loads are."""

    prompt: int  # mean tokens; lengths are between half and one and a half of it
    answer: int  # tokens of an answer under churn
    steady_answer: int  # tokens of a steady row at most
    seconds: float  # of a load with few rows

    def load_s(self, rows: int) -> float:
        """More rows take longer steps, and a load should have some 150 of them."""
        return self.seconds * (1 + rows / _ROWS_OF_TWICE)

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt and its answer."""
        return self.prompt + self.prompt // 2 + max(self.answer, self.steady_answer)


@dataclass(frozen=True, slots=True, kw_only=True)
class NeverWork:
    """Every load: numbers of rows, texts, and chains that are always drafted."""

    rows: tuple[int, ...]
    kinds: tuple[LoadKind, ...]
    texts: tuple[TextLevel, ...]
    chains: tuple[int, ...]  # draft steps, ascending; adaptive drafting chooses up to the last
    limits: NeverLimits
    keeps_engines: bool  # one engine of each way for all loads; else a new one for every load

    @property
    def most_rows(self) -> int:
        return max(self.rows)

    @property
    def num_loads(self) -> int:
        each = 1 + len(self.texts) * (len(self.chains) + 1)
        return len(self.rows) * len(self.kinds) * each

    def places(self) -> Iterator[LoadPlace]:
        """The most important first."""
        first = [rows for rows in _FIRST_ROWS if rows in self.rows]
        for rows in dict.fromkeys((*first, *self.rows)):
            for kind in self.kinds:
                yield LoadPlace(rows=rows, kind=kind)


def parse_texts(value: str) -> tuple[TextLevel, ...]:
    """Levels from a comma list such as easy=0.9,hard=0.1."""
    levels = []
    for part in split_list(value):
        name, _, chance = part.partition("=")
        levels.append(TextLevel(name=name.strip(), chance=_parse_chance(chance, part)))
    if not levels:
        raise ConfigError("--texts is empty; give a chance by name, such as easy=0.9,hard=0.1")
    return tuple(levels)


def parse_kinds(value: str) -> tuple[LoadKind, ...]:
    """Kinds of loads from a comma list."""
    names = split_list(value)
    if not names or not set(names) <= set(KINDS):
        raise ConfigError(f"--kinds has {value!r}; choose from {', '.join(KINDS)}")
    return tuple(kind for kind in KINDS if kind in names)


def parse_chains(value: str) -> tuple[int, ...]:
    """Lengths of chains from a comma list, ascending."""
    return tuple(sorted(parse_counts("--chains", value)))


def _parse_chance(value: str, part: str) -> float:
    try:
        chance = float(value)
    except ValueError:
        chance = -1.0
    if not 0.0 <= chance <= 1.0:
        raise ConfigError(f"--texts has {part!r}; give a chance from 0 to 1, such as easy=0.9")
    return chance
