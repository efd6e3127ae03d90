"""How a batch is padded. `fit` decides every size before anything else is derived from it."""

from bisect import bisect_left
from dataclasses import dataclass
from typing import Protocol

from outrider.step.shape import ChunkShape, SamplingFlags, StepShape
from outrider.wire.draft_budget import PLAIN, Budget
from outrider.wire.scheduled_batch import ScheduledBatch


class Sizes(Protocol):
    """The sizes that one axis of a step may have."""

    def up(self, size: int) -> int:
        """The smallest allowed size that is not below this one."""
        ...


@dataclass(frozen=True, slots=True)
class Multiples:
    """Multiples of a number. Multiples of 1 are all sizes."""

    of: int

    def up(self, size: int) -> int:
        return -(-size // self.of) * self.of


@dataclass(frozen=True, slots=True)
class Listed:
    """A few sizes in ascending order; a size above the last one stays as it is."""

    sizes: tuple[int, ...]

    def up(self, size: int) -> int:
        index = bisect_left(self.sizes, size)
        return self.sizes[index] if index < len(self.sizes) else size


EXACT = Multiples(1)
_NO_CHUNKS = ChunkShape(rows=0, tokens=0, width=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Buckets:
    """Which sizes each axis of a step is rounded up to."""

    page_size: int
    lead: int = 0  # positions that a draft model runs ahead of the target; it reads and writes them
    rows: Sizes = EXACT
    chunk_rows: Sizes = EXACT
    chunk_tokens: Sizes = EXACT
    pages: Sizes = EXACT

    def fit(self, batch: ScheduledBatch, *, sampling_flags: SamplingFlags) -> StepShape:
        """The padded shape of this batch; its tree has room for the largest budget."""
        num_decodes, tree = len(batch.decodes), _widest(batch.decodes.budgets)
        return StepShape(
            rows=self.rows.up(num_decodes) if num_decodes else 0,
            tree=tree,
            chunk=self._fit_chunks(tuple([len(chunk.tokens) for chunk in batch.chunks])),
            pages=self.pages.up(-(-self._most_keys(batch, tree) // self.page_size)),
            sampling_flags=sampling_flags,
        )

    def _fit_chunks(self, counts: tuple[int, ...]) -> ChunkShape:
        if not counts:
            return _NO_CHUNKS
        tokens = self.chunk_tokens.up(sum(counts))
        padding = tokens - sum(counts)
        # Padding tokens need a row of their own: they are a chunk of row 0.
        rows = self.chunk_rows.up(len(counts) + (1 if padding else 0))
        return ChunkShape(
            rows=rows, tokens=tokens, width=self.chunk_tokens.up(max(*counts, padding))
        )

    def _most_keys(self, batch: ScheduledBatch, tree: Budget) -> int:
        """Keys that the longest row may read: its bound of cached tokens, and this step's own."""
        most = [chunk.start + len(chunk.tokens) + self.lead for chunk in batch.chunks]
        if batch.decodes.rows:
            most.append(max(batch.decodes.bounds) + tree.reach(self.lead))
        return max(most)


def _widest(budgets: tuple[Budget, ...]) -> Budget:
    """The tree that has room for each of these budgets. Rows of one kind share one object."""
    kinds = tuple({id(budget): budget for budget in budgets}.values()) or (PLAIN,)
    if len(kinds) == 1:
        return kinds[0]
    return Budget(
        steps=max(budget.steps for budget in kinds),
        topk=max(budget.topk for budget in kinds),
        nodes=max(budget.nodes for budget in kinds),
    )


def largest_shape(
    *, rows: int, tree: Budget, chunk: ChunkShape, pages: int, buckets: Buckets
) -> StepShape:
    """The shape that no step exceeds. It gives the size of the arena."""
    tokens = buckets.chunk_tokens.up(chunk.tokens)
    return StepShape(
        rows=buckets.rows.up(rows),
        tree=tree,
        chunk=ChunkShape(
            rows=buckets.chunk_rows.up(chunk.rows + 1),
            tokens=tokens,
            width=buckets.chunk_tokens.up(max(chunk.width, tokens - chunk.tokens)),
        ),
        pages=buckets.pages.up(pages),
        sampling_flags=SamplingFlags(),
    )


# Sizes for which a GPU captures graphs. Rows: a GEMM costs the same for 9 rows as for 16.
_ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, *range(192, 4097, 64))
_TOKENS = (16, 32, 64, *range(128, 1025, 128), *range(1280, 16385, 256))
_LEAST_CONTEXT = 256  # tokens, which attention reads in one split; larger buckets double


def device_buckets(*, page_size: int, max_rows: int, reach: int) -> Buckets:
    """Few enough shapes that each is worth a captured graph, with little padding in any of them."""
    contexts = [_LEAST_CONTEXT]
    while contexts[-1] < reach:
        contexts.append(2 * contexts[-1])
    rows = tuple(size for size in _ROWS if size < max_rows)
    return Buckets(
        page_size=page_size,
        rows=Listed((*rows, max_rows)),
        chunk_rows=Listed((1, 2, 4, 8)),
        chunk_tokens=Listed(_TOKENS),
        pages=Listed(tuple(-(-context // page_size) for context in contexts)),
    )
