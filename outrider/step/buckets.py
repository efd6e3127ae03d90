"""How a batch is padded. `fit` decides every size before anything else is derived from it."""

from dataclasses import dataclass

from outrider.plan.shape import ChunkShape, StepShape, Warps
from outrider.wire.batch import ScheduledBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Buckets:
    """Sizes are rounded up to multiples of these; 1 everywhere is exact."""

    page_size: int
    rows: int = 1
    chunk_rows: int = 1
    chunk_tokens: int = 1
    pages: int = 1

    def fit(self, batch: ScheduledBatch, *, nodes: int, warps: Warps) -> StepShape:
        """The padded shape of this batch when every decoding row runs `nodes` query tokens."""
        rows = round_up(len(batch.decodes), self.rows)
        return StepShape(
            rows=rows,
            nodes=nodes,
            chunk=self._fit_chunks(tuple(len(chunk.tokens) for chunk in batch.chunks)),
            pages=round_up(-(-_most_keys(batch, nodes) // self.page_size), self.pages),
            warps=warps,
        )

    def _fit_chunks(self, counts: tuple[int, ...]) -> ChunkShape:
        if not counts:
            return ChunkShape(rows=0, tokens=0, width=0)
        tokens = round_up(sum(counts), self.chunk_tokens)
        padding = tokens - sum(counts)
        # Padding tokens need a row of their own: they are a chunk of row 0.
        rows = round_up(len(counts) + (1 if padding else 0), self.chunk_rows)
        return ChunkShape(rows=rows, tokens=tokens, width=max(*counts, padding))


def largest_shape(
    *, rows: int, nodes: int, chunk: ChunkShape, pages: int, buckets: Buckets
) -> StepShape:
    """The shape no step exceeds; what the arena is sized by."""
    tokens = round_up(chunk.tokens, buckets.chunk_tokens)
    return StepShape(
        rows=round_up(rows, buckets.rows),
        nodes=nodes,
        chunk=ChunkShape(
            rows=round_up(chunk.rows + 1, buckets.chunk_rows),
            tokens=tokens,
            width=max(chunk.width, tokens - chunk.tokens),
        ),
        pages=round_up(pages, buckets.pages),
        warps=Warps(),
    )


def round_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def _most_keys(batch: ScheduledBatch, nodes: int) -> int:
    """Keys the longest row may read: what is cached at most, and this step's own."""
    decodes = (decode.bound + nodes for decode in batch.decodes)
    chunks = (chunk.start + len(chunk.tokens) for chunk in batch.chunks)
    return max((*decodes, *chunks))
