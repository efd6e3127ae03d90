"""How deep an engine sleeps and what it wakes up, in vLLM's words."""

from collections.abc import Sequence
from typing import Literal, get_args

from outrider.errors import RequestError

# 0: no step runs, memory stays. 1: weights go to host memory, the KV cache is freed. 2: both are
# freed, and weights are read from their files again.
SleepLevel = Literal[0, 1, 2]
# What happens to running requests: they end, finish before, or go on after waking up.
SleepMode = Literal["abort", "wait", "keep"]
SleepTag = Literal["weights", "kv_cache", "scheduling"]

ALL_TAGS: tuple[SleepTag, ...] = get_args(SleepTag)
ASLEEP = "the model is asleep; wake it up first, with POST /wake_up or wake_up()"


def parse_level(value: int) -> SleepLevel:
    for level in get_args(SleepLevel):
        if value == level:
            return level  # type: ignore[no-any-return]
    raise RequestError(f"the sleep level must be 0, 1 or 2, got {value!r}")


def check_level(level: SleepLevel, *, dp_size: int) -> None:
    """Refuse to free memory that is in several engines."""
    if level and dp_size > 1:
        raise RequestError(
            f"engines with --data-parallel-size {dp_size} cannot sleep at level {level}; level 0 "
            "stops them, and ending the server frees their memory"
        )


def parse_mode(value: str) -> SleepMode:
    for mode in get_args(SleepMode):
        if value == mode:
            return mode  # type: ignore[no-any-return]
    raise RequestError(f"mode must be abort, wait or keep, got {value!r}")


def parse_tags(values: Sequence[str]) -> tuple[SleepTag, ...]:
    """The tags to wake up; without any, all of them."""
    unknown = [value for value in values if value not in ALL_TAGS]
    if unknown:
        raise RequestError(f"tags are {', '.join(ALL_TAGS)}; there is no {unknown[0]!r}")
    return tuple(tag for tag in ALL_TAGS if tag in values) or ALL_TAGS
