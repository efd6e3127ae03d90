"""How a batch is padded. `fit` decides every size before anything else is derived from it."""

from dataclasses import dataclass

from outrider.plan.shape import ChunkShape, StepShape, Warps
from outrider.wire.batch import ScheduledBatch
from outrider.wire.speculation import PLAIN, Budget


@dataclass(frozen=True, slots=True, kw_only=True)
class Buckets:
    """Sizes are rounded up to multiples of these; 1 everywhere is exact."""

    page_size: int
    lead: int = 0  # positions a draft model runs ahead, which it may read and write
    rows: int = 1
    chunk_rows: int = 1
    chunk_tokens: int = 1
    pages: int = 1

    def fit(self, batch: ScheduledBatch, *, warps: Warps) -> StepShape:
        """The padded shape of this batch; its tree is as large as the largest budget asks."""
        budgets = [decode.budget for decode in batch.decodes] or [PLAIN]
        tree = Budget(
            steps=max(budget.steps for budget in budgets),
            topk=max(budget.topk for budget in budgets),
            nodes=max(budget.nodes for budget in budgets),
        )
        return StepShape(
            rows=round_up(len(batch.decodes), self.rows),
            tree=tree,
            chunk=self._fit_chunks(tuple(len(chunk.tokens) for chunk in batch.chunks)),
            pages=round_up(-(-self._most_keys(batch, tree) // self.page_size), self.pages),
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

    def _most_keys(self, batch: ScheduledBatch, tree: Budget) -> int:
        """Keys the longest row may read: what is cached at most, and what this step may write."""
        decodes = (decode.bound + tree.reach(self.lead) for decode in batch.decodes)
        chunks = (chunk.start + len(chunk.tokens) + self.lead for chunk in batch.chunks)
        return max((*decodes, *chunks))


def largest_shape(
    *, rows: int, tree: Budget, chunk: ChunkShape, pages: int, buckets: Buckets
) -> StepShape:
    """The shape no step exceeds; what the arena is sized by."""
    tokens = round_up(chunk.tokens, buckets.chunk_tokens)
    return StepShape(
        rows=round_up(rows, buckets.rows),
        tree=tree,
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
