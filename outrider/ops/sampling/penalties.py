"""Penalties of tokens already seen: repetition, presence and frequency."""

import torch

from outrider.ops.sampling.sampling_columns import PenaltyTables, column_of


def penalise(
    logits: torch.Tensor,  # [n, vocab] of any float, unit stride along vocab; may be overwritten
    tables: PenaltyTables,
    rows: torch.Tensor,  # [n] int64
    path: torch.Tensor,  # [n, depth] int64 tokens not yet recorded, padded with -1
) -> torch.Tensor:  # [n, vocab] float32
    """The logits with the penalties of each row; tokens on the path count as emitted."""
    if logits.is_cuda:
        from outrider.ops.sampling.penalties_triton import penalise_triton

        return penalise_triton(logits, tables, rows, path)
    return penalise_reference(logits, tables, rows, path)


def penalise_reference(
    logits: torch.Tensor,  # [n, vocab] float32, overwritten
    tables: PenaltyTables,
    rows: torch.Tensor,  # [n]
    path: torch.Tensor,  # [n, depth]
) -> torch.Tensor:  # [n, vocab] float32
    """The same in plain torch, in place. A row without penalties passes unchanged."""
    counts = tables.output_counts.index_select(0, rows)  # [n, vocab]
    counts.scatter_add_(1, path.clamp_min(0), (path >= 0).int())
    emitted = counts > 0
    seen = tables.prompt_seen.index_select(0, rows).logical_or_(emitted)
    repetition = torch.where(seen, column_of(tables.repetition, rows), 1.0)
    logits.copy_(torch.where(logits > 0, logits / repetition, logits * repetition))
    logits.sub_(emitted * column_of(tables.presence, rows))
    return logits.sub_(counts * column_of(tables.frequency, rows))
