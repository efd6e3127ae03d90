"""Which tokens each row of a step runs. Decode rows come first, then chunks of prompts."""

from dataclasses import dataclass

from outrider.ops.tree.plan_rows import ChunkRows, DecodeRows


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSpans:
    """All rows of a step. The nodes of a decode row are a chain."""

    decode: DecodeRows
    chunk: ChunkRows
    nodes: int  # of each decode row
    first_node: int  # nodes that earlier steps of a draft round stored after the cached tokens

    @property
    def num_rows(self) -> int:
        """Decode rows."""
        return self.decode.rows.shape[0]

    @property
    def num_decode_query(self) -> int:
        """Query tokens of decode rows."""
        return self.num_rows * self.nodes

    @property
    def num_chunks(self) -> int:
        return self.chunk.rows.shape[0]
