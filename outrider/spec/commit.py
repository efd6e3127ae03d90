"""The one writer of outcomes: accepted KV is made contiguous, lengths and last tokens advance."""

import torch

from outrider.kv.kv_pool import KVPool, ModelPool
from outrider.step.draft_tree import VerifyResult
from outrider.step.plan import StepPlan
from outrider.step.row_table import RowTable


def commit(
    plan: StepPlan,
    verify_result: VerifyResult,
    chunk_choice: torch.Tensor,  # [chunk.rows] the target's token after each chunk
    *,
    table: RowTable,
    kv: ModelPool,
) -> None:
    """Advance every row of the step. A row inside its prompt gets a last token nobody reads."""
    decode, chunk = plan.decode, plan.chunk
    if plan.shape.tree.topk > 1:  # the kept nodes of a chain lie where they belong
        assert isinstance(kv, KVPool), (
            "what lives in rows takes chains only, which is checked at start"
        )
        _compact(plan, verify_result, table, kv)
    if verify_result.num_accepted.is_cuda:
        from outrider.ops.tree.commit_triton import commit_rows  # a CPU installation has no Triton

        commit_rows(
            decode=(decode.rows, decode.lengths),
            num_accepted=verify_result.num_accepted,
            emitted=verify_result.emitted,
            chunk=(chunk.rows, chunk.starts, chunk.counts, chunk_choice),
            table=(table.lengths, table.last_tokens),
        )
        return
    bonus = verify_result.emitted.gather(1, verify_result.num_accepted[:, None]).squeeze(1)
    table.commit(
        torch.cat([decode.rows, chunk.rows]),
        torch.cat([decode.lengths + verify_result.num_accepted + 1, chunk.starts + chunk.counts]),
        torch.cat([bonus, chunk_choice]),
    )


def _compact(plan: StepPlan, verify_result: VerifyResult, table: RowTable, kv: KVPool) -> None:
    """Move the KV of kept nodes to the front: depth d of the path to position L + d.

    A path never goes up (a parent precedes its children), so reading all before writing suffices.
    """
    if verify_result.path.is_cuda:
        from outrider.ops.tree.commit_triton import compact

        decode = plan.decode.rows, plan.decode.lengths
        path, num_accepted = verify_result.path, verify_result.num_accepted
        compact(kv.storage, decode=decode, path=path, num_accepted=num_accepted, pages=table.pages)
        return
    page_size = kv.layout.page_size
    rows = plan.decode.rows[:, None].expand_as(verify_result.path)
    lengths = plan.decode.lengths[:, None]
    depth = torch.arange(verify_result.path.shape[1], device=lengths.device)
    is_accepted = depth <= verify_result.num_accepted[:, None]
    source = table.slots(rows, lengths + verify_result.path, page_size)
    goal = table.slots(rows, lengths + depth, page_size)
    goal = torch.where(is_accepted, goal, source)  # what is not kept stays where it is
    for layer in kv.layers:
        slots = layer.view(-1, *layer.shape[2:])
        slots.index_copy_(0, goal.flatten(), slots.index_select(0, source.flatten()))
