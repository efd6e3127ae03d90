"""Models whose past lives in rows, on a small device of their own: one step at a time."""

import random
from dataclasses import dataclass
from typing import Any

import torch

from outrider.models.draft_model import AuxLayers
from outrider.models.target import Target
from outrider.ops.tree.chain import chain
from outrider.step.fill_plan import fill, resolve_lengths
from outrider.step.planner import Planner
from outrider.step.row_table import RowTable
from support.steps import NO_FLAGS, batch_of, small_device

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
        plan = self.planner.plan(batch_of(lengths, chunks, nodes=nodes), sampling_flags=NO_FLAGS)
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
        states = self.decoder.forward(plan, self.pool, self.attention, AuxLayers())
        return self.decoder.logits(states.hidden_states)


def planner_of(
    attention, *, nodes: int, pad=1, rows=4, reach=128, most_chunk=128
) -> tuple[Planner, RowTable, int]:
    """A planner over rows that own random pages, and how many pages there are."""
    device = small_device(
        random.Random(0),
        page_size=PAGE_SIZE,
        nodes=nodes,
        pad=pad,
        rows=rows,
        reach=reach,
        most_chunk=most_chunk,
        attention=attention,
    )
    return device.planner, device.table, device.num_pages
