"""What the sampling kernels read: columns of the sampling table. No Triton here."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class RowNoise:
    """Noise of `n` choices: each has its row of the tables and its position."""

    seeds: torch.Tensor  # [rows] int64
    temperatures: torch.Tensor  # [rows] float32
    rows: torch.Tensor  # [n] int64
    positions: torch.Tensor  # [n] int64

    def arguments(self) -> tuple[torch.Tensor | int, ...]:
        """What a kernel takes: the tensors, then the strides of the tables."""
        tables = (self.seeds, self.temperatures)
        return (*tables, self.rows, self.positions, *(table.stride(0) for table in tables))


@dataclass(frozen=True, slots=True, kw_only=True)
class NoNoise:
    """Logits stay as they are."""

    unread: torch.Tensor  # any tensor: a kernel must be given something

    def arguments(self) -> tuple[torch.Tensor | int, ...]:
        return (self.unread,) * 4 + (1, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PenaltyTables:
    """What each row has seen and how much that counts."""

    output_counts: torch.Tensor  # [rows, vocab] int32
    prompt_seen: torch.Tensor  # [rows, vocab] bool
    repetition: torch.Tensor  # [rows] float32; all three of the same stride
    presence: torch.Tensor  # [rows] float32
    frequency: torch.Tensor  # [rows] float32


@dataclass(frozen=True, slots=True, kw_only=True)
class EditTables:
    """What is added to which tokens of a row, while its position is below `until`."""

    tokens: torch.Tensor  # [rows, edits] int64; at most one finite edit in force per token
    values: torch.Tensor  # [rows, edits] float32, minus infinity for a ban
    until: torch.Tensor  # [rows, edits] int64


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterTables:
    """What each row keeps."""

    temperature: torch.Tensor  # [rows] float32; all but top_k of the same stride
    top_p: torch.Tensor  # [rows] float32, 1 keeps all
    log_min_p: torch.Tensor  # [rows] float32, minus infinity keeps all
    top_k: torch.Tensor  # [rows] int64, the vocabulary keeps all
