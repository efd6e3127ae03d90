"""`commit_rows` on a CPU, in one compiled call instead of about 15 small operations."""

import torch

from outrider.ops.compiled.thread_team import run_alone
from outrider.ops.compiled.verified_rows import NUM_OUTSIDE, commit_row_states
from outrider.ops.graph_break import graph_break
from outrider.ops.tree.draft_tree import VerifyResult
from outrider.ops.tree.plan_rows import ChunkRows, DecodeRows

_FUNCTION = int(commit_row_states.address)


def commit_rows_compiled(
    decode: DecodeRows,
    verify_result: VerifyResult,
    chunk: ChunkRows,
    chunk_choice: torch.Tensor,  # [chunk.rows]
    *,
    lengths: torch.Tensor,  # [table_rows] written
    last_tokens: torch.Tensor,  # [table_rows] written
) -> None:
    emitted, num_accepted = verify_result.emitted, verify_result.num_accepted
    rows = (decode.rows, decode.lengths, num_accepted, emitted)
    chunks = (chunk.rows, chunk.starts, chunk.counts, chunk_choice)
    graph_break(_commit, rows, chunks, lengths, last_tokens)


def _commit(
    rows: tuple[torch.Tensor, ...],  # rows, lengths and accepted drafts [rows], emitted tokens
    chunks: tuple[torch.Tensor, ...],  # rows, starts, counts and choices [chunk.rows]
    lengths: torch.Tensor,
    last_tokens: torch.Tensor,
) -> None:
    sizes = (rows[0].shape[0], chunks[0].shape[0], rows[3].shape[1], lengths.shape[0])
    tensors = (*rows, *chunks, lengths, last_tokens)
    given = (*sizes, *(tensor.data_ptr() for tensor in tensors), 0)
    if run_alone(_FUNCTION, given)[NUM_OUTSIDE]:
        raise IndexError("a row of the step lies outside of the row table")
