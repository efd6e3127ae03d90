"""Fills which recurrent states a step reads, and how many node inputs it applies to each."""

import torch

from outrider.ops.recurrent.recurrent_rows import NEW_TEXT, RecurrentRows, StateRows
from outrider.ops.sparse.ring_plan import QueryRows, fill_window_reference
from outrider.ops.sparse.step_spans import StepSpans


def fill_recurrent(
    plan: RecurrentRows,  # written
    state_lengths: torch.Tensor,  # [table_rows] int64 tokens that each row's state contains
    step: StepSpans,
    *,
    length: int,  # of a ring buffer
    most_nodes: int,  # of a chain
) -> None:
    """Write the plan, and advance `state_lengths` to where the states will be after the step."""
    if state_lengths.is_cuda:
        from outrider.ops.recurrent.fill_recurrent_triton import fill_recurrent_triton

        fill_recurrent_triton(plan, state_lengths, step, length=length, most_nodes=most_nodes)
    else:
        fill_recurrent_reference(plan, state_lengths, step, length=length, most_nodes=most_nodes)


def fill_recurrent_reference(
    plan: RecurrentRows,
    state_lengths: torch.Tensor,
    step: StepSpans,
    *,
    length: int,
    most_nodes: int,
) -> None:
    """The same in torch."""
    table_rows = state_lengths.shape[0]
    rows = fill_window_reference(plan.window, step, length=length, table_rows=table_rows)
    _fill_states(plan.states, state_lengths, rows, num_rows=plan.num_rows, most_nodes=most_nodes)


def _fill_states(
    states: StateRows,
    state_lengths: torch.Tensor,
    rows: QueryRows,
    *,
    num_rows: int,  # decode rows
    most_nodes: int,
) -> None:
    states.rows.copy_(rows.rows)
    states.firsts.copy_(rows.firsts)
    states.counts.copy_(rows.counts)
    num_accepted = (rows.starts - state_lengths[rows.rows]).clamp(0, most_nodes)
    states.accepted_counts.copy_(torch.where(rows.starts > 0, num_accepted, NEW_TEXT))
    # Nodes may be rejected, so a state never contains them. Chunks are committed as they run.
    is_chunk = torch.arange(rows.rows.shape[0], device=state_lengths.device) >= num_rows
    after = (rows.starts + rows.counts * is_chunk) * (rows.rows > 0)
    state_lengths.index_copy_(0, rows.rows, after)
