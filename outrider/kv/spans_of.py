"""The rows of a planned step, as operations on ring buffers and recurrent states read them."""

from outrider.ops.sparse.step_spans import StepSpans
from outrider.step.attention_backend import AttentionScope
from outrider.step.shape import StepShape


def spans_of(shape: StepShape, scope: AttentionScope) -> StepSpans:
    """Which tokens each row of the step runs."""
    return StepSpans(
        decode=scope.decode,
        chunk=scope.chunk,
        nodes=shape.nodes,
        first_node=scope.first_node,
    )
