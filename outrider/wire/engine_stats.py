"""How full an engine is, and what it has done since it started."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """How many rows or pages there are, and how many are free."""

    free: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixCounts:
    """Sums over the prompts that were looked up in the prefix cache."""

    queried_tokens: int
    hit_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Failures that the engine survived."""

    failed_steps: int
    drafter_failures: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCounts:
    """Steps that a runner ran, and how."""

    steps: int
    eager: int  # steps without a captured graph
    unrecordable: int  # shapes whose capture failed; `/invariants` shows this name

    def plus(self, other: "StepCounts") -> "StepCounts":
        """Of both."""
        return StepCounts(
            steps=self.steps + other.steps,
            eager=self.eager + other.eager,
            unrecordable=self.unrecordable + other.unrecordable,
        )


NO_STEPS = StepCounts(steps=0, eager=0, unrecordable=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceWork:
    """Busy time and steps of the device."""

    busy_s: float  # in which the device ran steps
    active_s: float  # in which the engine had requests; the device can be busy no longer than that
    counts: StepCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """Requests by whether they have a row."""

    waiting: int  # for a row, or before that for KV or a grammar
    running: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferCounts:
    """KV that is shared with other engines."""

    offered: int  # prompts whose pages another engine may read
    arriving: int  # prompts whose pages are written, or may still be, or wait for a row
    pages: int  # that these hold
    total_done: int  # prompts offered, or read
    total_failed: int  # prompts that were computed here, because their KV did not come
    total_bytes: int  # that were read, also for prompts whose KV did not come; the reader counts

    def plus(self, other: "TransferCounts") -> "TransferCounts":
        """Of both."""
        return TransferCounts(
            offered=self.offered + other.offered,
            arriving=self.arriving + other.arriving,
            pages=self.pages + other.pages,
            total_done=self.total_done + other.total_done,
            total_failed=self.total_failed + other.total_failed,
            total_bytes=self.total_bytes + other.total_bytes,
        )


NO_TRANSFERS = TransferCounts(
    offered=0, arriving=0, pages=0, total_done=0, total_failed=0, total_bytes=0
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """The engine at one moment. When it is idle, every row and page is free, or one has leaked."""

    queue: Queue
    rows: Capacity
    pages: Capacity  # a page that only the prefix cache uses is free
    prefix: PrefixCounts
    faults: Faults
    work: DeviceWork
    transfers: TransferCounts = NO_TRANSFERS


def joined_replicas(stats: Sequence[EngineStats]) -> EngineStats:
    """The sums over engines that step on their own."""
    counts = reduce(StepCounts.plus, (each.work.counts for each in stats), NO_STEPS)
    work = DeviceWork(
        busy_s=sum(each.work.busy_s for each in stats),
        active_s=sum(each.work.active_s for each in stats),
        counts=counts,
    )
    return EngineStats(
        queue=Queue(
            waiting=sum(each.queue.waiting for each in stats),
            running=sum(each.queue.running for each in stats),
        ),
        rows=_sum([each.rows for each in stats]),
        pages=_sum([each.pages for each in stats]),
        prefix=PrefixCounts(
            queried_tokens=sum(each.prefix.queried_tokens for each in stats),
            hit_tokens=sum(each.prefix.hit_tokens for each in stats),
        ),
        faults=Faults(
            failed_steps=sum(each.faults.failed_steps for each in stats),
            drafter_failures=sum(each.faults.drafter_failures for each in stats),
        ),
        work=work,
        transfers=reduce(TransferCounts.plus, (each.transfers for each in stats), NO_TRANSFERS),
    )


def joined_ranks(stats: Sequence[EngineStats]) -> EngineStats:
    """The same of engines that run the same steps: times and steps are counted once."""
    work = DeviceWork(
        busy_s=max(each.work.busy_s for each in stats),
        active_s=max(each.work.active_s for each in stats),
        counts=stats[0].work.counts,
    )
    return replace(joined_replicas(stats), work=work)


def _sum(capacities: Sequence[Capacity]) -> Capacity:
    return Capacity(
        free=sum(each.free for each in capacities), total=sum(each.total for each in capacities)
    )
