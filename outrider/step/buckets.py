"""How a batch is padded. `fit` decides every size before anything else is derived from it."""

from bisect import bisect_left
from dataclasses import dataclass
from typing import Protocol

from outrider.step.shape import ChunkShape, SamplingFlags, StepShape
from outrider.step.step_sizes import StepSizes
from outrider.wire.draft_budget import Budget, draft_levels
from outrider.wire.scheduled_batch import ScheduledBatch


class Sizes(Protocol):
    """The sizes that one axis of a step may have."""

    def up(self, size: int) -> int:
        """The smallest allowed size that is not below this one."""
        ...

    def upto(self, most: int) -> tuple[int, ...]:
        """The allowed sizes from the smallest to the one of `most`."""
        ...

    def most_padding(self, *, least: int, most: int) -> int:
        """The most that `up` adds to a size between these two, without trying all of them."""
        ...


@dataclass(frozen=True, slots=True)
class Multiples:
    """Multiples of a number. Multiples of 1 are all sizes."""

    of: int

    def up(self, size: int) -> int:
        return -(-size // self.of) * self.of

    def upto(self, most: int) -> tuple[int, ...]:
        return tuple(range(self.of, self.up(most) + 1, self.of))

    def most_padding(self, *, least: int, most: int) -> int:
        sizes = range(least, min(most, least + self.of - 1) + 1)  # it repeats after that many
        return max(self.up(size) - size for size in sizes)


@dataclass(frozen=True, slots=True)
class Listed:
    """A few sizes in ascending order; a size above the last one stays as it is."""

    sizes: tuple[int, ...]

    def up(self, size: int) -> int:
        index = bisect_left(self.sizes, size)
        return self.sizes[index] if index < len(self.sizes) else size

    def upto(self, most: int) -> tuple[int, ...]:
        return self.sizes[: bisect_left(self.sizes, most) + 1]

    def most_padding(self, *, least: int, most: int) -> int:
        past = [size + 1 for size in self.sizes if least < size + 1 <= most]  # just past a size
        return max(self.up(size) - size for size in (least, *past))


EXACT = Multiples(1)
_NO_CHUNKS = ChunkShape(rows=0, tokens=0, width=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Buckets:
    """Which sizes each axis of a step is rounded up to."""

    page_size: int
    lead: int = 0  # positions that a draft model runs ahead of the target; it reads and writes them
    block: int = 0  # slots that a draft model runs at once
    rows: Sizes = EXACT
    chunk_rows: Sizes = EXACT
    tokens: Sizes = EXACT  # of a step with chunks: its decode rows' nodes and its chunks together
    is_width_free: bool = False  # one shape for chunks of any lengths with the same total
    is_ragged: bool = False  # decode rows may have different numbers of query tokens
    is_even: bool = False  # of a ragged step: few totals, as if every row had as many drafts
    pages: Sizes = EXACT
    chunk_pages: Sizes = EXACT  # of a step with chunks

    def fit(self, sizes: StepSizes, *, sampling_flags: SamplingFlags) -> StepShape:
        """The padded shape of a batch of these sizes; its tree has room for the largest budget."""
        rows = self.rows.up(sizes.decodes) if sizes.decodes else 0
        pages = self.chunk_pages if sizes.chunks else self.pages
        num_decode_query = self._num_decode_query(rows, sizes)
        return StepShape(
            rows=rows,
            tree=sizes.tree,
            chunk=self._fit_chunks(sizes, num_decode_query),
            pages=pages.up(-(-self._most_keys(sizes) // self.page_size)),
            sampling_flags=sampling_flags,
            has_embeds=sizes.has_embeds,
            has_axes=sizes.has_axes,
            ragged=num_decode_query if num_decode_query < rows * sizes.tree.nodes else 0,
        )

    def _num_decode_query(self, rows: int, sizes: StepSizes) -> int:
        """Query tokens of decode rows: node 0 of each, padding included, and their drafts."""
        most = sizes.tree.nodes - 1  # drafts of a row
        if not self.is_ragged:
            return rows * (1 + most)
        if not self.is_even:
            return rows + sizes.drafts
        # By the rows that have a request, so that a rung has one shape for all rows of a bucket.
        enough = (num for num in draft_levels(most) if num * sizes.decodes >= sizes.drafts)
        return rows * (1 + next(enough, most))

    def _fit_chunks(self, sizes: StepSizes, num_decode_query: int) -> ChunkShape:
        if not sizes.chunks:
            return _NO_CHUNKS
        tokens = self.chunk_tokens(sizes.chunk_tokens, num_decode_query)
        padding = tokens - sizes.chunk_tokens + sizes.spread
        # Padding tokens need a row of their own: they are a chunk of row 0.
        rows = self.chunk_rows.up(sizes.chunks + (1 if padding else 0))
        width = tokens if self.is_width_free else max(sizes.longest_chunk, padding)
        return ChunkShape(rows=rows, tokens=tokens, width=width)

    def chunk_tokens(self, tokens: int, num_decode_query: int) -> int:
        """Chunk tokens after padding. Linear layers run in tiles of the step's total."""
        return self.tokens.up(num_decode_query + tokens) - num_decode_query

    def _most_keys(self, sizes: StepSizes) -> int:
        """Keys that the longest row may read: its bound of cached tokens, and this step's own."""
        most = [sizes.last_chunk_end + self.lead] if sizes.chunks else []
        if sizes.decodes:
            most.append(sizes.most_cached + sizes.tree.reach(self.lead, self.block))
        return max(most)


def has_room_for_padding(batch: ScheduledBatch, shape: StepShape) -> bool:
    """Whether the shape has a row for the chunk of its padding tokens, if there are any."""
    tokens = sum(len(chunk.tokens) for chunk in batch.chunks)
    return tokens == shape.chunk.tokens or len(batch.chunks) < shape.chunk.rows


def largest_shape(
    *, rows: int, tree: Budget, chunk: ChunkShape, pages: int, buckets: Buckets
) -> StepShape:
    """The shape that no step exceeds. It gives the size of the arena."""
    padded_rows = buckets.rows.up(rows)
    # Steps with fewer decode query tokens may have more padding.
    most_total = chunk.tokens + padded_rows * tree.nodes
    tokens = chunk.tokens + buckets.tokens.most_padding(least=chunk.tokens, most=most_total)
    return StepShape(
        rows=padded_rows,
        tree=tree,
        chunk=ChunkShape(
            rows=buckets.chunk_rows.up(chunk.rows + 1),
            tokens=tokens,
            width=tokens if buckets.is_width_free else max(chunk.width, tokens - chunk.tokens),
        ),
        pages=max(buckets.pages.up(pages), buckets.chunk_pages.up(pages)),
        sampling_flags=SamplingFlags(),
    )


# Sizes for which a GPU captures graphs. Rows: a GEMM costs the same for 9 rows as for 16.
_ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, *range(192, 4097, 64))
# Totals of steps with chunks: a GEMM runs in tiles of 64 or 128 tokens.
_TOKENS = (64, *range(128, 1025, 128), *range(1280, 32769, 256))
_LEAST_CONTEXT = 256  # tokens, which attention reads in one split
# Contexts of steps with chunks: their other work hides what reading few of many splits costs.
_LEAST_CHUNK_CONTEXT = 4096
_CONTEXT_GROWTH = 4  # a split past the end of a text is not read, so few buckets are enough


def device_buckets(*, page_size: int, max_rows: int, max_chunks: int, reach: int) -> Buckets:
    """Few enough shapes that each is worth a captured graph, with little padding in any of them."""
    rows = tuple(size for size in _ROWS if size < max_rows)
    return Buckets(
        page_size=page_size,
        rows=Listed((*rows, max_rows)),
        chunk_rows=Listed((max_chunks + 1,)),
        tokens=Listed(_TOKENS),
        is_width_free=True,
        is_even=True,
        pages=_contexts(_LEAST_CONTEXT, page_size=page_size, reach=reach),
        chunk_pages=_contexts(_LEAST_CHUNK_CONTEXT, page_size=page_size, reach=reach),
    )


def _contexts(least: int, *, page_size: int, reach: int) -> Listed:
    """Pages of growing contexts, up to one that holds the longest text."""
    contexts = [least]
    while contexts[-1] < reach:
        contexts.append(_CONTEXT_GROWTH * contexts[-1])
    return Listed(tuple(-(-min(context, max(reach, least)) // page_size) for context in contexts))
