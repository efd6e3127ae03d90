"""Columns of the sampling table, as the sampling operations read them."""

from dataclasses import dataclass

import torch


def column_of(values: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:  # [n, 1]
    """The table entries [table_rows] of these rows [n], to be broadcast over the vocabulary."""
    return values.index_select(0, rows)[:, None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowNoise:
    """Noise of `n` choices. Each choice has a row of the tables and a position."""

    seeds: torch.Tensor  # [rows] int64
    temperatures: torch.Tensor  # [rows] float32
    rows: torch.Tensor  # [n] int64
    positions: torch.Tensor  # [n] int64

    def arguments(self) -> tuple[torch.Tensor | int, ...]:
        """The arguments of a kernel: the tensors, then the strides of the tables."""
        tables = (self.seeds, self.temperatures)
        return (*tables, self.rows, self.positions, *(table.stride(0) for table in tables))


@dataclass(frozen=True, slots=True, kw_only=True)
class NoNoise:
    """Logits stay as they are."""

    unread: torch.Tensor  # any tensor: a kernel needs pointers though it does not read them

    def arguments(self) -> tuple[torch.Tensor | int, ...]:
        return (self.unread,) * 4 + (1, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PenaltyTables:
    """Which tokens each row has seen, and its penalties."""

    output_counts: torch.Tensor  # [rows, vocab] int32
    prompt_seen: torch.Tensor  # [rows, vocab] bool
    repetition: torch.Tensor  # [rows] float32; all three of the same stride
    presence: torch.Tensor  # [rows] float32
    frequency: torch.Tensor  # [rows] float32


@dataclass(frozen=True, slots=True, kw_only=True)
class EditTables:
    """Values added to the logits of some tokens of a row, while its position is below `until`."""

    tokens: torch.Tensor  # [rows, edits] int64; at most one finite edit in force per token
    values: torch.Tensor  # [rows, edits] float32, minus infinity for a ban
    until: torch.Tensor  # [rows, edits] int64


@dataclass(frozen=True, slots=True, kw_only=True)
class WordTables:
    """Sequences of tokens that must not occur in a row's output, and its last tokens."""

    words: torch.Tensor  # [rows, words, context + 1] int32; `bad_words.py` has the padding values
    outputs: torch.Tensor  # [rows, context] int64, the latest last; -1 before the output


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinkingTables:
    """Where each row stands in its reasoning, and where it must end it."""

    opens: torch.Tensor  # [rows] int64 token, -1 without a budget
    closes: torch.Tensor  # [rows] int64 token, -1 without a budget
    until: torch.Tensor  # [rows] int64
    has_begun: torch.Tensor  # [rows] bool
    has_ended: torch.Tensor  # [rows] bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterTables:
    """The filters of each row."""

    temperature: torch.Tensor  # [rows] float32; all but top_k of the same stride
    top_p: torch.Tensor  # [rows] float32, 1 keeps all
    log_min_p: torch.Tensor  # [rows] float32, minus infinity keeps all
    top_k: torch.Tensor  # [rows] int64, the vocabulary keeps all
