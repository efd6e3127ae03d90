"""Commits a step: accepted KV is made contiguous, lengths and last tokens advance."""

import torch

from outrider.kv.kv_pool import KVPool, ModelPool
from outrider.ops.attention.kv_codes import as_moved
from outrider.ops.tree.commit_rows import commit_rows
from outrider.ops.tree.compact_kv import compact_kv
from outrider.ops.tree.draft_tree import VerifyResult
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
    """Advance every row of the step. The last token of a row inside its prompt is never read."""
    if plan.shape.tree.topk > 1:  # the KV of a chain's accepted nodes is contiguous already
        assert isinstance(kv, KVPool), "models with row state take chains only: checked at start"
        compact_kv(as_moved(kv.storage), plan.decode, verify_result, table.pages)
    commit_rows(
        plan.decode,
        verify_result,
        plan.chunk,
        chunk_choice,
        lengths=table.lengths,
        last_tokens=table.last_tokens,
    )
