"""How full an engine is, and what it has done since its start."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Stock:
    """A number of equal things of which some are in use."""

    free: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixCounts:
    """Sums over the prompts that were looked up in the prefix cache."""

    queried_tokens: int
    hit_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """What went wrong and was survived."""

    failed_steps: int
    drafter_failures: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCounts:
    """Steps that a runner was given, and how they were run."""

    steps: int
    eager: int  # that no recording served
    uncapturable: int  # shapes that could not be recorded


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceWork:
    """What the device has done."""

    busy_s: float
    counts: StepCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """Requests by whether they have a row."""

    waiting: int
    running: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """One moment of an engine. With nothing to do, every row and page is free: else one leaked."""

    queue: Queue
    rows: Stock
    pages: Stock  # a page that only the prefix cache remembers is free
    prefix: PrefixCounts
    faults: Faults
    work: DeviceWork
