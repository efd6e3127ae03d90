"""A planner, tables and a pool at small odd sizes, for tests of what runs on a plan."""

import random
from dataclasses import dataclass

import torch

from outrider.kv.reference_attention import ReferenceAttention
from outrider.step.arena import Arena
from outrider.step.attention_backend import AttentionBackend
from outrider.step.buckets import Buckets, Multiples, largest_shape
from outrider.step.planner import NoDraftBinder, Planner
from outrider.step.row_table import RowTable
from outrider.step.shape import ChunkShape, SamplingFlags
from outrider.wire.draft_budget import Budget
from outrider.wire.scheduled_batch import (
    PageGrant,
    ScheduledBatch,
    ScheduledChunk,
    ScheduledDecodes,
)


@dataclass
class SmallDevice:
    """Tables whose rows own random pages of a pool, and a planner over them."""

    arena: Arena
    attention: AttentionBackend
    planner: Planner
    table: RowTable
    num_pages: int
    page_size: int

    def slot(self, row: int, position: int) -> int:
        page = int(self.table.pages[row, position // self.page_size])
        return page * self.page_size + position % self.page_size


def small_device(
    rng: random.Random,
    *,
    page_size: int,
    nodes: int,
    pad: int = 1,
    rows: int = 5,
    reach: int = 40,
    most_chunk: int = 64,
    attention: AttentionBackend | None = None,  # another than the reference
    is_ragged: bool = False,
) -> SmallDevice:
    sizes = Multiples(pad)
    buckets = Buckets(
        page_size=page_size,
        rows=sizes,
        chunk_rows=sizes,
        tokens=sizes,
        pages=sizes,
        chunk_pages=sizes,
        is_ragged=is_ragged,
    )
    arena, device = Arena(torch.device("cpu")), torch.device("cpu")
    attention = attention or ReferenceAttention(page_size=page_size, dtype=torch.float32)
    max_pages = -(-(reach + nodes) // page_size)
    width = -(-max_pages // pad) * pad  # padded columns must exist
    table = RowTable(max_rows=rows, max_pages=width, device=device)
    planner = Planner(
        arena=arena,
        attention=attention,
        draft=NoDraftBinder(),
        table=table,
        buckets=buckets,
        largest=largest_shape(
            rows=rows,
            tree=Budget(steps=nodes, nodes=nodes),
            chunk=ChunkShape(rows=4, tokens=most_chunk, width=most_chunk),
            pages=max_pages,
            buckets=buckets,
        ),
    )
    pages = list(range(1, rows * max_pages + 1))
    rng.shuffle(pages)
    grants = [
        PageGrant(row=row, first=0, pages=tuple(pages[(row - 1) * max_pages : row * max_pages]))
        for row in range(1, rows + 1)
    ]
    table.grant(tuple(grants))
    return SmallDevice(arena, attention, planner, table, len(pages) + 1, page_size)


def batch_of(
    decodes: dict[int, int],
    chunks: dict[int, tuple[int, list[int]]],
    *,
    nodes: int,
    slack: int = 0,
    topk: int = 1,
    own_nodes: list[int] | None = None,  # of each decode row; `nodes` if there are none
) -> ScheduledBatch:
    """Decodes by row with lengths (bounds exceed them by `slack`); chunks with (start, tokens)."""
    budgets = [
        Budget(steps=own, topk=topk, nodes=own) for own in own_nodes or [nodes] * len(decodes)
    ]
    return ScheduledBatch(
        step=1,
        admissions=(),
        grants=(),
        chunks=tuple(
            ScheduledChunk(row=row, start=start, tokens=tuple(tokens), follower=-1)
            for row, (start, tokens) in chunks.items()
        ),
        decodes=ScheduledDecodes(
            rows=tuple(decodes),
            bounds=tuple(length + slack for length in decodes.values()),
            budgets=tuple(budgets),
            most_drafts=sum(budget.nodes - 1 for budget in budgets),
        ),
    )


NO_FLAGS = SamplingFlags()
