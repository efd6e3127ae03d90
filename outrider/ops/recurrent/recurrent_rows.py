"""The recurrent state of every row, and what a step does with the states of its rows."""

from dataclasses import dataclass

import torch

from outrider.ops.sparse.ring_plan import QueryWindows

NEW_TEXT = -1  # instead of an accepted count: the text begins in this step, from a zero state


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentState:
    """What one recurrent layer stores per row."""

    window: torch.Tensor  # [slots, qkv] ring buffers of the convolution, row after row
    node_inputs: torch.Tensor  # [table_rows, nodes, node_inputs] of the last step's chain
    state: torch.Tensor  # [table_rows, value_heads, key_dim, value_dim] float32


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRows:
    """The rows of a step, decode rows first, then chunks."""

    rows: torch.Tensor  # [step_rows] int64 in the device tables
    accepted_counts: torch.Tensor  # [step_rows] int64 node inputs that were accepted, or NEW_TEXT
    firsts: torch.Tensor  # [step_rows] int64 index of the row's first query token
    counts: torch.Tensor  # [step_rows] int64 its query tokens

    def between(self, start: int, end: int | None) -> "StateRows":
        """Some of the rows."""
        return StateRows(
            rows=self.rows[start:end],
            accepted_counts=self.accepted_counts[start:end],
            firsts=self.firsts[start:end],
            counts=self.counts[start:end],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentRows:
    """The rows and windows of a step, as the delta rule reads them."""

    states: StateRows
    window: QueryWindows  # of the convolution
    num_rows: int  # decode rows
    nodes: int  # of each decode row
    chunk_width: int  # tokens of the longest chunk

    @property
    def num_decode_query(self) -> int:
        """Query tokens of decode rows."""
        return self.num_rows * self.nodes

    @property
    def num_chunks(self) -> int:
        return self.states.rows.shape[0] - self.num_rows
