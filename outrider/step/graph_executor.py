"""CUDA graphs: a program is recorded once per plan, then replayed as one launch per segment.

A recording has one segment, unless the program makes live calls: each of those is a break.
"""

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from outrider.step.borrowed_tensor import borrow
from outrider.step.graph_break import Call, capturing, handle_breaks
from outrider.step.plan import StepPlan
from outrider.step.shape import StepShape

T = TypeVar("T")

MAX_GRAPHS = 512  # a few hundred kilobytes for each of their segments
MAX_FAILURES = 8  # after that, nothing more is recorded

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _CapturedGraph:
    """Segments and the live calls between them, in order, and what the program returned."""

    parts: tuple[Callable[[], None], ...]
    output: Any

    @property
    def num_breaks(self) -> int:
        return len(self.parts) // 2

    def replay(self) -> None:
        for part in self.parts:
            part()


class _Recorder:
    """Owns the segment that is being captured on the current stream."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._graph = torch.cuda.CUDAGraph()
        self._parts: list[Callable[[], None]] = []

    def record(self, program: Callable[[StepPlan], Any], plan: StepPlan) -> _CapturedGraph:
        self._begin()
        try:
            with capturing(), handle_breaks(self._break):
                output = program(plan)
            self._end()
        except BaseException:  # an interrupt, too, must not leave the stream capturing
            with suppress(RuntimeError):  # it reports the same failure again
                self._graph.capture_end()
            raise
        return _CapturedGraph(tuple(self._parts), output)

    def _break(self, call: Call, *args: Any) -> None:
        """End a segment, remember the call, begin the next. Nothing runs while recording."""
        self._end()
        # Borrowed, not kept: what comes later in the program may use their memory again.
        num_accepted = tuple(borrow(arg) if isinstance(arg, torch.Tensor) else arg for arg in args)
        self._parts.append(lambda: call(*num_accepted))
        self._begin()

    def _begin(self) -> None:
        self._graph = torch.cuda.CUDAGraph()
        # Relaxed: a kernel may still have to be loaded, and other threads may allocate meanwhile.
        self._graph.capture_begin(pool=self._pool, capture_error_mode="relaxed")

    def _end(self) -> None:
        self._graph.capture_end()
        self._parts.append(self._graph.replay)


class GraphExecutor:
    """Owns a recording per shape that its table admits; other shapes run the program eagerly.

    A shape is run eagerly before it is recorded: that compiles its kernels, and is a real step.
    All recordings share memory: a step's outputs are copied away before the next step begins.
    """

    def __init__(self, admits: Callable[[StepShape], bool]) -> None:
        self._admits = admits
        self._graphs: dict[StepShape, _CapturedGraph] = {}  # the one used last is the last
        self._latest: tuple[StepPlan, _CapturedGraph] | None = None  # what was replayed last
        self._met: set[StepShape] = set()  # with chunks, run once
        self._pool = torch.cuda.graph_pool_handle()
        self._refused: set[StepShape] = set()
        self.num_eager = 0
        self.num_uncapturable = 0

    @property
    def num_graphs(self) -> int:
        return len(self._graphs)

    def run(self, program: Callable[[StepPlan], T], plan: StepPlan) -> T:
        graph = self._find(plan)
        if graph is not None:
            graph.replay()
            return graph.output  # type: ignore[no-any-return]
        self.num_eager += 1
        output = program(plan)
        if self._can_capture(plan.shape):
            self._capture(program, plan)
        return output

    def _find(self, plan: StepPlan) -> _CapturedGraph | None:
        """The recording of a plan; steps in a row mostly have the same one."""
        if self._latest is not None and self._latest[0] is plan:
            return self._latest[1]
        found = self._graphs.pop(plan.shape, None)
        if found is not None:
            self._graphs[plan.shape] = found
            self._latest = plan, found
        return found

    def _can_capture(self, shape: StepShape) -> bool:
        """Decoding shapes at first sight; those with chunks, of which many come once, at second."""
        if (
            not self._admits(shape)
            or shape in self._refused
            or self.num_uncapturable >= MAX_FAILURES
        ):
            return False
        if not shape.chunk.rows or shape in self._met:
            return True
        self._met.add(shape)
        return False

    def _capture(self, program: Callable[[StepPlan], Any], plan: StepPlan) -> None:
        """Record a step that has just run. If that fails nothing is lost but its speed."""
        try:
            graph = _Recorder(self._pool).record(program, plan)
        except Exception:
            self._refused.add(plan.shape)
            self.num_uncapturable += 1
            self._pool = torch.cuda.graph_pool_handle()  # the old one is in an unknown state
            _log.exception("steps of %s cannot be recorded and run eagerly", plan.shape)
            return
        self._latest = None
        if self.num_graphs >= MAX_GRAPHS:  # none of the last few steps used this one
            del self._graphs[next(iter(self._graphs))]
        self._graphs[plan.shape] = graph
        _log.debug("recorded %s with %d breaks", plan.shape, graph.num_breaks)


def without_breaks(shape: StepShape) -> bool:
    """Uniform rows without a grammar: programs without a live call."""
    return not shape.chunk.rows and not shape.sampling_flags.grammar


MOST_BROKEN_TOKENS = 2048  # a longer step keeps the device busy while the host launches it


def up_to_long_chunks(shape: StepShape) -> bool:
    """Uniform rows, and chunks as long as launching them costs more than running them.

    Steps that score prompts are rare and work on many logits, whose memory no recording shall keep.
    """
    if shape.sampling_flags.scores:
        return False
    return shape.num_query <= MOST_BROKEN_TOKENS or not shape.chunk.rows
