"""Commits a step: accepted KV is made contiguous, lengths and last tokens advance."""

import torch

from outrider.kv.kv_pool import KVPool, ModelPool
from outrider.kv.windowed_pool import WindowedPool
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
        for pool, pages in _pools(kv, table):
            compact_kv(as_moved(pool.storage), plan.decode, verify_result, pages)
    commit_rows(
        plan.decode,
        verify_result,
        plan.chunk,
        chunk_choice,
        lengths=table.lengths,
        last_tokens=table.last_tokens,
    )


def _pools(kv: ModelPool, table: RowTable) -> list[tuple[KVPool, torch.Tensor]]:
    """The pools of a model, each with the page tables of its layers: [table_rows, max_pages]."""
    if isinstance(kv, WindowedPool):
        both = [(kv.whole, table.pages), (kv.windowed, table.window_pages)]
        return [(pool, pages) for pool, pages in both if pool.layers]
    assert isinstance(kv, KVPool), "models with row state take chains only: checked at start"
    return [(kv, table.pages)]
