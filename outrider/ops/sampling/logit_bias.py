"""Logit bias, and bans: tokens that may not be chosen before some position."""

import torch

from outrider.ops.sampling.sampling_columns import EditTables


def add_bias_(
    logits: torch.Tensor,  # [n, vocab] float32, contiguous; changed in place
    tables: EditTables,
    rows: torch.Tensor,  # [n] int64
    positions: torch.Tensor,  # [n] int64
) -> None:
    """Add the bias, and minus infinity to tokens that are banned at the position."""
    if logits.is_cuda:
        from outrider.ops.sampling.logit_bias_triton import add_bias_triton_

        add_bias_triton_(logits, tables, rows, positions)
        return
    add_bias_reference_(logits, tables, rows, positions)


def add_bias_reference_(
    logits: torch.Tensor, tables: EditTables, rows: torch.Tensor, positions: torch.Tensor
) -> None:
    """The same in plain torch."""
    in_force = positions[:, None] < tables.until.index_select(0, rows)  # [n, edits]
    values = torch.where(in_force, tables.values.index_select(0, rows), 0.0)
    logits.scatter_add_(1, tables.tokens.index_select(0, rows), values)
