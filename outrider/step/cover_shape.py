"""Which captured shape can run a step of another shape: the same work with more padding."""

from collections.abc import Iterable
from dataclasses import replace

from outrider.step.shape import SamplingFlags, StepShape

# With so much padding a captured step is still faster than an eager one. A step that would need
# more runs eagerly once and is captured.
_MOST_PADDING = 1.25
_FREE_TOKENS = 128  # query tokens that a step reads at about the price of one


def find_cover(shape: StepShape, captured: Iterable[StepShape]) -> StepShape | None:
    """The captured shape with the least padding that can run steps of this shape."""
    most = max(_FREE_TOKENS, _MOST_PADDING * shape.num_query)
    covers = [other for other in captured if other.num_query <= most and _covers(other, shape)]
    return min(covers, key=_cost, default=None)


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
