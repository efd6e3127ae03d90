"""Models whose past lives in rows, on a small device of their own: one step at a time."""

import random
from dataclasses import dataclass
from typing import Any

import torch

from outrider.memory.arena import Arena
from outrider.models.draft import Taps
from outrider.models.target import Target
from outrider.plan.shape import ChunkShape
from outrider.spec.drafter import chain
from outrider.step.buckets import Buckets, Multiples, largest_shape
from outrider.step.fill import fill, resolve_lengths
from outrider.step.planner import NoDraftPart, Planner
from outrider.step.rows import RowTable
from outrider.wire.batch import PageGrant
from outrider.wire.speculation import Budget
from support.steps import NO_WARPS, batch_of

CPU = torch.device("cpu")
PAGE_SIZE = 16


@dataclass
class RowHarness:
    """A decoder with pages, what it keeps of rows, and a planner; `run` is one step of it."""

    decoder: Target
    attention: Any
    planner: Planner
    table: RowTable
    pool: Any

    def run(self, decodes, chunks, *, nodes=1, execute=lambda program, plan: program(plan)):
        """Logits of every query token; decodes are {row: (length, tokens)}, a chain each."""
        for row, (length, tokens) in decodes.items():
            self.table.lengths[row] = length
            assert len(tokens) == nodes
        lengths = {row: length for row, (length, _) in decodes.items()}
        plan = self.planner.plan(batch_of(lengths, chunks, nodes=nodes), warps=NO_WARPS)
        drafted = torch.zeros(plan.shape.rows, plan.shape.nodes, dtype=torch.int64)
        for place, (_, tokens) in enumerate(decodes.values()):
            drafted[place] = torch.tensor(tokens)
        self.drafted = drafted  # a program reads what lies at a fixed place
        with torch.inference_mode():
            return execute(self.program, plan)

    def program(self, plan):
        resolve_lengths(plan, self.table)
        tree = chain(self.drafted)
        fill(plan, tree, table=self.table, attention=self.attention, page_size=PAGE_SIZE)
        states = self.decoder.run(plan, self.pool, self.attention, Taps())
        return self.decoder.logits(states.hidden)


def planner_of(attention, *, nodes: int, pad=1, rows=4, reach=128) -> tuple[Planner, RowTable, int]:
    """A planner over rows that own random pages, and how many pages there are."""
    sizes = Multiples(pad)
    buckets = Buckets(
        page_size=PAGE_SIZE, rows=sizes, chunk_rows=sizes, chunk_tokens=sizes, pages=sizes
    )
    max_pages = sizes.up(-(-(reach + nodes) // PAGE_SIZE))
    table = RowTable(max_rows=rows, max_pages=max_pages, device=CPU)
    planner = Planner(
        arena=Arena(CPU),
        attention=attention,
        draft=NoDraftPart(),
        table=table,
        buckets=buckets,
        largest=largest_shape(
            rows=rows,
            tree=Budget(steps=nodes, nodes=nodes),
            chunk=ChunkShape(rows=4, tokens=128, width=128),
            pages=max_pages,
            buckets=buckets,
        ),
    )
    pages = list(range(1, rows * max_pages + 1))
    random.Random(0).shuffle(pages)
    table.grant(
        tuple(
            PageGrant(row=row, first=0, pages=tuple(pages[row - 1 :: rows]))
            for row in range(1, rows + 1)
        )
    )
    return planner, table, len(pages) + 1
