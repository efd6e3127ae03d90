"""A draft model or a decoder that runs chunks over pages of its own."""

import random
from dataclasses import dataclass

import torch

from outrider.kv.kv_pool import KVLayout, KVPool
from outrider.ops.tree.chain import single_node
from outrider.step.fill_plan import fill, resolve_lengths
from support.steps import NO_FLAGS, SmallDevice, batch_of, small_device

PAGE_SIZE = 4


@dataclass
class Paged:
    """A model's own tables, pool and planner."""

    device: SmallDevice
    pool: KVPool

    def run(self, function, chunks):
        """`function(plan, pool, attention)` of {row: (start, tokens)}, split by row."""
        device = self.device
        plan = device.planner.plan(batch_of({}, chunks, nodes=1), sampling_flags=NO_FLAGS)
        resolve_lengths(plan, device.table)
        tree = single_node(device.table.last_tokens[plan.decode.rows])
        fill(plan, tree, table=device.table, attention=device.attention, page_size=PAGE_SIZE)
        out = function(plan, self.pool, device.attention)
        return dict(zip(chunks, out.split([len(t) for _, t in chunks.values()]), strict=True))


def paged(*, num_layers, attention, backend=None):
    layout = KVLayout(
        layers=num_layers,
        vectors=attention.vectors,
        width=attention.width,
        page_size=PAGE_SIZE,
        dtype=torch.float32,
    )
    device = small_device(random.Random(0), page_size=PAGE_SIZE, nodes=1, attention=backend)
    return Paged(device, KVPool(layout, num_pages=device.num_pages, device=torch.device("cpu")))
