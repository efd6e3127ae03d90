"""The one writer of outcomes: accepted KV is made contiguous, lengths and last tokens advance."""

import torch

from outrider.kv.kv_pool import KVPool, ModelPool
from outrider.step.draft_tree import Verdict
from outrider.step.plan import StepPlan
from outrider.step.row_table import RowTable


def commit(
    plan: StepPlan,
    verdict: Verdict,
    chunk_choice: torch.Tensor,  # [chunk.rows] the target's token after each chunk
    *,
    table: RowTable,
    kv: ModelPool,
) -> None:
    """Advance every row of the step. A row inside its prompt gets a last token nobody reads."""
    uniform, chunk = plan.uniform, plan.chunk
    if plan.shape.tree.topk > 1:  # the kept nodes of a chain lie where they belong
        assert isinstance(kv, KVPool), (
            "what lives in rows takes chains only, which is checked at start"
        )
        _compact(plan, verdict, table, kv)
    if verdict.kept.is_cuda:
        from outrider.ops.tree.commit_triton import commit_rows  # a CPU installation has no Triton

        commit_rows(
            uniform=(uniform.rows, uniform.lengths),
            kept=verdict.kept,
            emitted=verdict.emitted,
            chunk=(chunk.rows, chunk.starts, chunk.counts, chunk_choice),
            table=(table.lengths, table.last_tokens),
        )
        return
    bonus = verdict.emitted.gather(1, verdict.kept[:, None]).squeeze(1)
    table.commit(
        torch.cat([uniform.rows, chunk.rows]),
        torch.cat([uniform.lengths + verdict.kept + 1, chunk.starts + chunk.counts]),
        torch.cat([bonus, chunk_choice]),
    )


def _compact(plan: StepPlan, verdict: Verdict, table: RowTable, kv: KVPool) -> None:
    """Move the KV of kept nodes to the front: depth d of the path to position L + d.

    A path never goes up (a parent precedes its children), so reading all before writing suffices.
    """
    if verdict.path.is_cuda:
        from outrider.ops.tree.commit_triton import compact

        uniform = plan.uniform.rows, plan.uniform.lengths
        path, kept = verdict.path, verdict.kept
        compact(kv.storage, uniform=uniform, path=path, kept=kept, pages=table.pages)
        return
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
