"""Ranks that are threads of one process: the collectives of `RankGroup` without processes.

All ranks run whole runners in lockstep. Sums are added in the order of ranks, as `GlooRanks` does,
so real processes give the same bits.
"""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from typing import Generic, TypeVar

import torch

from outrider.distributed.rank_group import ExpertRanks
from outrider.errors import CapacityError
from outrider.ops.graph_break import graph_break
from outrider.runtime.runner import InFlightStep, Runner
from outrider.structured.grammar_cache import Grammars
from outrider.wire.embedded_span import EmbeddedSpan
from outrider.wire.engine_stats import StepCounts
from outrider.wire.scheduled_batch import ScheduledBatch
from outrider.wire.step_result import StepResult

T = TypeVar("T")
HANG_S = 60.0  # a rank that waits this long waits for a call that no other rank makes


class ThreadGroup:
    """Owns the turn: one rank runs at a time, from one collective to the next, in their order.

    So threads never compete, and a run is repeatable. Rank 0 runs in the calling thread. There are
    two sets of slots: a rank may begin a call while others have not read the last one.
    """

    def __init__(self, size: int) -> None:
        self.ranks = [ThreadRank(self, rank, size) for rank in range(size)]
        self._pool = ThreadPoolExecutor(max_workers=max(size - 1, 1))
        self._begin()

    def _begin(self) -> None:
        size = len(self.ranks)
        self._turns = [threading.Semaphore(0) for _ in range(size)]
        self._slots: list[list[tuple[int, object]]] = [[(0, None)] * size, [(0, None)] * size]
        self._live = list(range(size))
        for rank in self.ranks:
            rank.num_calls = 0

    def run(self, call: Callable[[int], T]) -> list[T]:
        """The results of a call on every rank. All ranks fail if one does, with its error."""
        self._begin()
        others = [self._pool.submit(self._run_rank, call, each.rank) for each in self.ranks[1:]]
        self._turns[0].release()
        outcomes = [self._run_rank(call, 0), *(each.result() for each in others)]
        errors = [each.error for each in outcomes if each.error is not None]
        if errors:
            raise min(errors, key=lambda error: isinstance(error, RanksDiffer))
        return [each.result for each in outcomes]  # type: ignore[misc]

    def exchange(self, rank: int, number: int, value: T) -> list[T]:
        """The values of all ranks for their call of this number, in the order of ranks."""
        slots = self._slots[number % 2]
        slots[rank] = (number, value)
        self._pass_turn(rank)
        self._wait_for_turn(rank)
        if any(each != number for each, _ in slots):
            raise RanksDiffer(f"not all ranks made call {number}")
        return [value for _, value in slots]  # type: ignore[misc]

    def _run_rank(self, call: Callable[[int], T], rank: int) -> "Outcome[T]":
        result: T | None = None
        error: Exception | None = None
        try:
            self._wait_for_turn(rank)
            result = call(rank)
        except Exception as raised:
            error = raised
        self._pass_turn(rank, is_last=True)
        return Outcome(result, error)

    def _pass_turn(self, rank: int, *, is_last: bool = False) -> None:
        """To the next rank that has not finished."""
        after = [each for each in self._live if each > rank] + self._live
        if is_last:
            after = [each for each in after if each != rank]
            self._live.remove(rank)
        if after:
            self._turns[after[0]].release()

    def _wait_for_turn(self, rank: int) -> None:
        if not self._turns[rank].acquire(timeout=HANG_S):
            raise RanksDiffer(f"rank {rank} waited for the others")


class RanksDiffer(Exception):
    """Ranks decided differently, or did not make the same calls. The latter also if one failed."""


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """What became of a call on one rank."""

    result: T | None
    error: Exception | None


class ThreadRank:
    """One rank of a group of threads."""

    experts: ExpertRanks | None = None

    def __init__(self, group: ThreadGroup, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self.num_calls = 0
        self._group = group

    def add_up_(self, x: torch.Tensor) -> None:
        if x.numel():
            graph_break(self._add_up, x)

    def join(self, x: torch.Tensor) -> torch.Tensor:  # [n, width] -> [n, size * width]
        return self.stack(x).transpose(0, 1).flatten(1)

    def stack(self, x: torch.Tensor) -> torch.Tensor:  # [n, width] -> [size, n, width]
        parts = x.new_empty(self.size, *x.shape)
        if x.numel():
            graph_break(self._stack, x, parts)
        return parts

    def exchange(self, parts: torch.Tensor) -> torch.Tensor:  # [size, n, width] both
        received = torch.empty_like(parts)
        if parts.numel():
            graph_break(self._exchange_parts, parts, received)
        return received

    def copy_first_(self, x: torch.Tensor) -> None:
        if x.numel():
            graph_break(self._copy_first, x)

    def take_largest_(self, x: torch.Tensor) -> None:
        if x.numel():
            graph_break(self._take_largest, x)

    def least(self, value: int) -> int:
        return min(self._exchange(value))

    def _add_up(self, x: torch.Tensor) -> None:
        first, *rest = self._exchange(x.clone())
        total = first.float()
        for part in rest:
            total = total + part
        x.copy_(total)

    def _stack(self, x: torch.Tensor, parts: torch.Tensor) -> None:
        parts.copy_(torch.stack(self._exchange(x.clone())))

    def _exchange_parts(self, parts: torch.Tensor, received: torch.Tensor) -> None:
        received.copy_(torch.stack([each[self.rank] for each in self._exchange(parts.clone())]))

    def _take_largest(self, x: torch.Tensor) -> None:
        x.copy_(torch.stack(self._exchange(x.clone())).amax(0))

    def _copy_first(self, x: torch.Tensor) -> None:
        x.copy_(self._exchange(x.clone())[0])

    def _exchange(self, value: T) -> list[T]:
        self.num_calls += 1
        return self._group.exchange(self.rank, self.num_calls, value)


class LockstepRunner:
    """The runners of all ranks of a group. Only the output of rank 0 is used, but all are equal."""

    def __init__(self, group: ThreadGroup, runners: list[Runner]) -> None:
        self.runners = runners
        self._group = group

    @property
    def grammars(self) -> Grammars:
        return self.runners[0].grammars

    @property
    def counts(self) -> StepCounts:
        return self.runners[0].counts

    def submit(self, batch: ScheduledBatch) -> "LockstepStep":
        return LockstepStep(self._group.run(lambda rank: self.runners[rank].submit(batch)))

    def find_tokens(self, span: EmbeddedSpan) -> tuple[int, ...]:
        return self.runners[0].find_tokens(span)

    def restart(self) -> None:
        raise CapacityError("a step failed on a group of ranks")


class LockstepStep:
    """One step on all ranks."""

    def __init__(self, steps: list[InFlightStep]) -> None:
        self._steps = steps

    def wait(self) -> StepResult:
        result = self._steps[0].wait()
        first = self._steps[0]._output.packed
        for rank, step in enumerate(self._steps[1:], start=1):
            step.wait()
            for field in fields(first):
                ours, theirs = (getattr(o, field.name) for o in (first, step._output.packed))
                same = torch.equal(ours.nan_to_num(), theirs.nan_to_num())
                if not same:
                    raise RanksDiffer(f"rank {rank} decided otherwise: {field.name}")
        return result
