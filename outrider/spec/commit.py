"""The one writer of outcomes: accepted KV is made contiguous, lengths and last tokens advance."""

import torch

from outrider.memory.pool import KVPool
from outrider.plan.plan import StepPlan
from outrider.plan.tree import Verdict
from outrider.step.rows import RowTable


def commit(
    plan: StepPlan,
    verdict: Verdict,
    chunk_choice: torch.Tensor,  # [chunk.rows] the target's token after each chunk
    *,
    table: RowTable,
    kv: KVPool,
) -> None:
    """Advance every row of the step. A row inside its prompt gets a last token nobody reads."""
    if plan.shape.nodes > 1:
        _compact(plan, verdict, table, kv)
    bonus = verdict.emitted.gather(1, verdict.kept[:, None]).squeeze(1)
    table.commit(
        torch.cat([plan.uniform.rows, plan.chunk.rows]),
        torch.cat([plan.uniform.lengths + verdict.kept + 1, plan.chunk.starts + plan.chunk.counts]),
        torch.cat([bonus, chunk_choice]),
    )


def _compact(plan: StepPlan, verdict: Verdict, table: RowTable, kv: KVPool) -> None:
    """Move the KV of kept nodes to the front: depth d of the path to position L + d.

    A path never goes up (a parent precedes its children), so reading all before writing suffices.
    """
    page_size = kv.layout.page_size
    rows = plan.uniform.rows[:, None].expand_as(verdict.path)
    lengths = plan.uniform.lengths[:, None]
    depth = torch.arange(verdict.path.shape[1], device=lengths.device)
    is_kept = depth <= verdict.kept[:, None]
    source = table.slots(rows, lengths + verdict.path, page_size)
    goal = table.slots(rows, lengths + depth, page_size)
    goal = torch.where(is_kept, goal, source)  # what is not kept stays where it is
    for layer in kv.layers:
        slots = layer.view(-1, *layer.shape[2:])
        slots.index_copy_(0, goal.flatten(), slots.index_select(0, source.flatten()))
