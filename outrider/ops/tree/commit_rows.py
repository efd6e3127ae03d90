"""Lengths and last tokens of rows after a step."""

import torch

from outrider.ops.compiled.why_not_compiled import is_compiled
from outrider.ops.tree.draft_tree import VerifyResult
from outrider.ops.tree.plan_rows import ChunkRows, DecodeRows

_COMPILED = "outrider.ops.compiled.verified_rows"


def commit_rows(
    decode: DecodeRows,
    verify_result: VerifyResult,
    chunk: ChunkRows,
    chunk_choice: torch.Tensor,  # [chunk.rows]
    *,
    lengths: torch.Tensor,  # [table_rows] written
    last_tokens: torch.Tensor,  # [table_rows] written
) -> None:
    """Write the length and the last token of every row of the step. Row 0 stays empty."""
    if lengths.is_cuda:
        from outrider.ops.tree.commit_rows_triton import commit_rows_triton

        commit_rows_triton(
            decode, verify_result, chunk, chunk_choice, lengths=lengths, last_tokens=last_tokens
        )
        return
    commit = commit_rows_reference
    if is_compiled(lengths, _COMPILED):
        from outrider.ops.tree.commit_rows_compiled import commit_rows_compiled as commit
    commit(decode, verify_result, chunk, chunk_choice, lengths=lengths, last_tokens=last_tokens)


def commit_rows_reference(
    decode: DecodeRows,
    verify_result: VerifyResult,
    chunk: ChunkRows,
    chunk_choice: torch.Tensor,  # [chunk.rows]
    *,
    lengths: torch.Tensor,  # [table_rows] written
    last_tokens: torch.Tensor,  # [table_rows] written
) -> None:
    """The same in plain torch."""
    num_accepted = verify_result.num_accepted
    bonus = verify_result.emitted.gather(1, num_accepted[:, None]).squeeze(1)
    rows = torch.cat([decode.rows, chunk.rows])
    after = torch.cat([decode.lengths + num_accepted + 1, chunk.starts + chunk.counts])
    is_real = (rows > 0).to(after.dtype)  # padding writes zeros to row 0
    lengths.index_copy_(0, rows, after * is_real)
    last_tokens.index_copy_(0, rows, torch.cat([bonus, chunk_choice]) * is_real)
