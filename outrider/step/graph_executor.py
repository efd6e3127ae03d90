"""CUDA graphs: a program is captured once per plan, then replayed with one launch per segment.

A graph has one segment, and one more for every graph break of the program.
"""

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from outrider.ops.graph_break import Call, capturing, handle_breaks
from outrider.step.borrowed_tensor import borrow
from outrider.step.cover_shape import ShapeCovers
from outrider.step.plan import StepPlan
from outrider.step.shape import StepShape

T = TypeVar("T")

MAX_GRAPHS = 2048  # a few hundred kilobytes for each of their segments
MAX_FAILURES = 8  # after so many failed captures no more are tried

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _CapturedGraph:
    """Segments and the host calls between them, in order, and what the program returned."""

    parts: tuple[Callable[[], None], ...]
    output: Any

    @property
    def num_breaks(self) -> int:
        return len(self.parts) // 2

    def replay(self) -> None:
        for part in self.parts:
            part()


class _Capture:
    """Owns the segment that is being captured on the current stream."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._graph = torch.cuda.CUDAGraph()
        self._parts: list[Callable[[], None]] = []

    def run(self, program: Callable[[StepPlan], Any], plan: StepPlan) -> _CapturedGraph:
        """The graph of a program."""
        self._begin()
        try:
            with capturing(), handle_breaks(self._break):
                output = program(plan)
            self._end()
        except BaseException:  # after an interrupt, too, the stream must not stay in capture mode
            with suppress(RuntimeError):  # it reports the same failure again
                self._graph.capture_end()
            raise
        return _CapturedGraph(tuple(self._parts), output)

    def _break(self, call: Call, *args: Any) -> None:
        """End a segment, store the call, begin the next segment. Nothing runs during capture."""
        self._end()
        # Borrowed: later operations of the program may reuse the memory of the arguments.
        borrowed = tuple(borrow(arg) if isinstance(arg, torch.Tensor) else arg for arg in args)
        self._parts.append(lambda: call(*borrowed))
        self._begin()

    def _begin(self) -> None:
        self._graph = torch.cuda.CUDAGraph()
        # Relaxed: the capture may load a kernel, and other threads may allocate during it.
        self._graph.capture_begin(pool=self._pool, capture_error_mode="relaxed")

    def _end(self) -> None:
        self._graph.capture_end()
        self._parts.append(self._graph.replay)


class GraphExecutor:
    """Owns one graph per shape that `admits` allows; other shapes run the program eagerly.

    A shape runs eagerly before it is captured: that compiles its kernels, and is a real step.
    All graphs share memory: a step's outputs are copied away before the next step begins.
    """

    def __init__(
        self, admits: Callable[[StepShape], bool], agree: Callable[[bool], bool] = bool
    ) -> None:
        self._admits = admits
        # Whether all ranks captured a shape. A rank without it would pad its steps otherwise.
        self._agree = agree
        self._graphs: dict[StepShape, _CapturedGraph] = {}  # in order of use, the latest last
        self._latest: tuple[StepPlan, _CapturedGraph] | None = None  # what was replayed last
        self._pool = torch.cuda.graph_pool_handle()
        self._refused: set[StepShape] = set()
        self._covers = ShapeCovers(self._graphs)
        self.num_eager = 0
        self.num_uncapturable = 0

    @property
    def num_graphs(self) -> int:
        return len(self._graphs)

    def cover(self, shape: StepShape) -> StepShape:
        """A shape that is captured already, if one has little more padding.

        A shape that keeps coming becomes its own: then it runs eagerly once and is captured.
        """
        return self._covers.next_for(shape, self._can_capture)

    def prepare(self, program: Callable[[StepPlan], T], plan: StepPlan) -> None:
        """Capture a shape whose kernels are compiled: a step of its kind has run before."""
        if plan.shape not in self._graphs and self._can_capture(plan.shape):
            self._capture(program, plan)

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
        """The graph of a plan, if there is one. Consecutive steps mostly have the same plan."""
        if self._latest is not None and self._latest[0] is plan:
            return self._latest[1]
        graph = self._graphs.pop(plan.shape, None)
        if graph is not None:
            self._graphs[plan.shape] = graph
            self._latest = plan, graph
        return graph

    def _can_capture(self, shape: StepShape) -> bool:
        """Shapes that are admitted, unless a capture failed: of this shape, or of many."""
        is_refused = shape in self._refused or self.num_uncapturable >= MAX_FAILURES
        return self._admits(shape) and not is_refused

    def _capture(self, program: Callable[[StepPlan], Any], plan: StepPlan) -> None:
        """Capture a step that has just run. If that fails on any rank, the shape stays eager."""
        graph = self._try_capture(program, plan)
        if not self._agree(graph is not None) or graph is None:
            self._refused.add(plan.shape)
            self.num_uncapturable += 1
            return
        self._latest = None
        if self.num_graphs >= MAX_GRAPHS:  # drop the least recently used
            del self._graphs[next(iter(self._graphs))]
        self._graphs[plan.shape] = graph
        self._covers.note_capture(plan.shape)
        _log.debug("captured %s with %d breaks", plan.shape, graph.num_breaks)

    def _try_capture(
        self, program: Callable[[StepPlan], Any], plan: StepPlan
    ) -> _CapturedGraph | None:
        try:
            return _Capture(self._pool).run(program, plan)
        except Exception:
            self._pool = torch.cuda.graph_pool_handle()  # the old one is in an unknown state
            _log.exception("steps of %s cannot be captured and run eagerly", plan.shape)
            return None


MAX_CAPTURED_TOKENS = 2048  # in a longer step the device is busy while the host launches


def without_breaks(shape: StepShape) -> bool:
    """Steps without a grammar: programs without a graph break."""
    return up_to_long_chunks(shape) and not shape.sampling_flags.grammar


def up_to_long_chunks(shape: StepShape) -> bool:
    """Decode rows, and chunks so short that launching them costs more than running them.

    Steps that score prompts are rare, and a graph would hold the memory of their many logits.
    """
    if shape.sampling_flags.scores:
        return False
    return shape.num_query <= MAX_CAPTURED_TOKENS or not shape.chunk.rows
