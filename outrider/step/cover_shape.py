"""Which captured shape can run a step of another shape: the same work with more padding."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

from outrider.step.shape import SamplingFlags, StepShape

# With so much padding a captured step is still faster than an eager one. A step that would need
# more runs eagerly once and is captured.
_MOST_PADDING = 1.25
_FREE_TOKENS = 128  # query tokens that a step reads at about the price of one
# An eager step and a capture take about 50 ms, as so much padding does: 27 us for a query token of
# an 8B model on an H200. A larger model has paid sooner.
_MOST_WASTED = 2048  # query tokens of padding


class ShapeCovers:
    """Owns which captured shape runs the steps of each shape that is not captured, and its cost.

    A cover saves an eager step and a capture, and every step pays for its padding. So a shape that
    keeps coming is captured when its padding has cost as much.
    """

    def __init__(self, captured: Collection[StepShape]) -> None:
        self._captured = captured  # grows
        self._found: dict[StepShape, StepShape] = {}
        self._wasted: dict[StepShape, int] = {}  # query tokens of padding so far
        # The last shape and its cover: consecutive steps mostly have one shape, and comparing is
        # faster than hashing.
        self._last: tuple[StepShape, StepShape] | None = None

    def next_for(self, shape: StepShape, can_capture: Callable[[StepShape], bool]) -> StepShape:
        """The shape that the next step of this shape runs in: a captured one, or its own.

        `can_capture` is a method of the executor that owns this. It is not stored: the cycle of
        references would keep captured graphs and their memory after the executor is dropped.
        """
        if self._last is None or self._last[0] != shape:
            self._last = shape, self._find(shape)
        asked, cover = self._last
        if cover is asked:
            return cover
        wasted = self._wasted.get(shape, 0) + _paid_tokens(cover) - _paid_tokens(shape)
        self._wasted[shape] = wasted
        return shape if wasted > _MOST_WASTED and can_capture(shape) else cover

    def note_capture(self, shape: StepShape) -> None:
        """A shape was captured: other shapes may have less padding in it."""
        self._wasted.pop(shape, None)
        self._found.clear()
        self._last = None

    def _find(self, shape: StepShape) -> StepShape:
        if shape in self._captured:
            return shape
        if shape not in self._found:
            self._found[shape] = find_cover(shape, self._captured) or shape
        return self._found[shape]


def find_cover(shape: StepShape, captured: Iterable[StepShape]) -> StepShape | None:
    """The captured shape with the least padding that can run steps of this shape."""
    most = max(_FREE_TOKENS, _MOST_PADDING * shape.num_query)
    covers = [other for other in captured if other.num_query <= most and _covers(other, shape)]
    return min(covers, key=_cost, default=None)


def _paid_tokens(shape: StepShape) -> int:
    return max(_FREE_TOKENS, shape.num_query)


def _cost(shape: StepShape) -> tuple[int, ...]:
    return (shape.num_query, shape.tree.steps, shape.pages, shape.rows, shape.sampling_flags.noise)


def _covers(large: StepShape, small: StepShape) -> bool:
    """Whether every row, node, chunk and page of the small shape has room in the large one."""
    sizes = zip(_sizes(large), _sizes(small), strict=True)
    has_chunks = bool(small.chunk.rows)
    return (
        bool(large.chunk.rows) == has_chunks
        and bool(large.rows) == bool(small.rows)
        and (large.has_embeds, large.has_axes) == (small.has_embeds, small.has_axes)
        and all(wide >= narrow for wide, narrow in sizes)
        and _flags_cover(large.sampling_flags, small.sampling_flags)
    )


def _sizes(shape: StepShape) -> tuple[int, ...]:
    tree, chunk = shape.tree, shape.chunk
    num_drafts = shape.num_decode_query - shape.rows
    rows = (shape.rows, tree.steps, tree.topk, tree.nodes, num_drafts)
    return (*rows, chunk.rows, chunk.tokens, chunk.width, shape.pages)


def _flags_cover(large: SamplingFlags, small: SamplingFlags) -> bool:
    """Noise never changes the token of a greedy row; other parts are needed or not by the reader
    of the step's output.
    """
    return large in (small, replace(small, noise=True))
