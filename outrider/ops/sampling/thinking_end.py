"""Thinking budgets: from some position on, a row that still reasons must end its reasoning."""

import math

import torch

from outrider.ops.sampling.sampling_columns import ThinkingTables


def force_end_(
    logits: torch.Tensor,  # [n, vocab] float32; changed in place
    tables: ThinkingTables,
    rows: torch.Tensor,  # [n] int64
    positions: torch.Tensor,  # [n] int64
    path: torch.Tensor,  # [n, depth] int64 drafts before the choice, -1 elsewhere
) -> None:
    """Leave only the closing tag to rows that are past their budget and still reason."""
    is_inside = inside_after(tables, rows, path)
    is_forced = is_inside & (positions >= tables.until.index_select(0, rows))
    closing = tables.closes.index_select(0, rows).clamp_min(0)[:, None]
    kept = torch.where(is_forced[:, None], 0.0, logits.gather(1, closing))
    logits.masked_fill_(is_forced[:, None], -math.inf)
    logits.scatter_(1, closing, kept)


def inside_after(
    tables: ThinkingTables,
    rows: torch.Tensor,  # [n] int64
    tokens: torch.Tensor,  # [n, k] int64 emitted or drafted next; -1 elsewhere
) -> torch.Tensor:  # [n] bool
    """Whether rows reason after these tokens. Reasoning that has ended does not begin again."""
    opens, closes = (each.index_select(0, rows)[:, None] for each in (tables.opens, tables.closes))
    begun = tables.has_begun.index_select(0, rows) | ((tokens == opens) & (tokens >= 0)).any(1)
    ended = tables.has_ended.index_select(0, rows) | ((tokens == closes) & (tokens >= 0)).any(1)
    return begun & ~ended
