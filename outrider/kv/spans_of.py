"""The rows of a planned step, as operations on ring buffers and recurrent states read them."""

from outrider.ops.sparse.step_spans import ChunkSpans, DecodeSpans, StepSpans
from outrider.step.attention_backend import AttentionScope
from outrider.step.shape import StepShape


def spans_of(shape: StepShape, scope: AttentionScope) -> StepSpans:
    """Which tokens each row of the step runs."""
    decode, chunk = scope.decode, scope.chunk
    return StepSpans(
        decode=DecodeSpans(
            rows=decode.rows,
            lengths=decode.lengths,
            nodes=shape.nodes,
            first_node=scope.first_node,
        ),
        chunk=ChunkSpans(
            rows=chunk.rows, starts=chunk.starts, counts=chunk.counts, owners=chunk.owners
        ),
    )
