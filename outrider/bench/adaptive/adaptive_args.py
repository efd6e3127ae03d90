"""The parsed flags of `outrider bench adaptive`. No torch."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from outrider.bench.churn.churn_args import ChurnPlace
from outrider.bench.offline.offline_args import split_list
from outrider.bench.speculation.prompt_kinds import Prompt, choose_prompts
from outrider.config.draft_config import DraftConfig
from outrider.errors import ConfigError

_EVERY = 1 << 30  # prompts of a kind

# Kinds of prompts, and the temperature of their answers: how often drafts are accepted depends on
# both. No kinds: all of them.
_LEVELS: dict[str, tuple[tuple[str, ...], float]] = {
    "easy": (("edit",), 0.0),
    "mixed": ((), 0.0),
    "hard": (("chat",), 1.6),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TextLevel:
    """Prompts that are about as hard to draft for."""

    name: str
    prompts: tuple[str, ...]
    temperature: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveWork:
    """How often every way answers: rounds of fresh engines, from several starts."""

    rows: tuple[int, ...]
    answer: int  # tokens of every answer
    rounds: int  # of an engine
    starts: int  # fresh engines of each way
    has_fixed: bool  # fixed budgets are measured, too


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveArgs:
    """The work, the drafter, and where the engines run."""

    work: AdaptiveWork
    texts: tuple[TextLevel, ...]
    draft: DraftConfig
    place: ChurnPlace


def choose_texts(
    value: str, files: Sequence[Path], *, temperature: float | None
) -> tuple[TextLevel, ...]:
    """Levels from a comma list; None: each has a temperature of its own."""
    names = split_list(value)
    if not names or not set(names) <= set(_LEVELS):
        raise ConfigError(f"--texts has {value!r}; choose from {', '.join(_LEVELS)}")
    prompts = choose_prompts(files, limit=_EVERY)
    levels = []
    for name in dict.fromkeys(names):
        kinds, usual = _LEVELS[name]
        texts = _in_turn([each for each in prompts if each.kind in kinds or not kinds])
        warmth = usual if temperature is None else temperature
        levels.append(TextLevel(name=name, prompts=texts, temperature=warmth))
    return tuple(levels)


def _in_turn(prompts: Sequence[Prompt]) -> tuple[str, ...]:
    """One prompt of every kind, then the next of every kind: rows of a round differ."""
    kinds = dict.fromkeys(each.kind for each in prompts)
    columns = ([each.text for each in prompts if each.kind == kind] for kind in kinds)
    return tuple(
        text for row in itertools.zip_longest(*columns) for text in row if text is not None
    )
