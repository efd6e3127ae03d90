"""The device's part of a plan: everything that follows from true lengths and the draft tree."""

from dataclasses import replace

import torch

from outrider.ops.tree.draft_tree import DraftTree
from outrider.ops.tree.fill_queries import fill_queries
from outrider.ops.tree.place_nodes import node_of_query, place_nodes
from outrider.step.attention_backend import AttentionPlanner, AttentionScope
from outrider.step.plan import StepPlan
from outrider.step.row_table import RowTable


def resolve_lengths(plan: StepPlan, table: RowTable) -> None:
    """Look up how much each decode row has cached; a drafter needs it before the tree exists."""
    torch.index_select(table.lengths, 0, plan.decode.rows, out=plan.decode.lengths)


def fill(
    plan: StepPlan,
    tree: DraftTree,
    *,
    table: RowTable,
    attention: AttentionPlanner,
    page_size: int,
    first_node: int = 0,
) -> None:
    """Write every element of the plan that the host did not stage, by device operations alone.

    Node n is stored at position L + first_node + n: a draft step keeps what earlier steps stored.
    """
    ancestors, queries = tree.ancestors, plan.queries.of_nodes
    if plan.shape.ragged:
        ancestors = place_nodes(tree, queries, num_query=plan.shape.ragged)
    place_queries(plan, tree, table=table, page_size=page_size, first_node=first_node)
    scope = AttentionScope(
        decode=plan.decode,
        ancestors=ancestors,
        queries=queries,
        chunk=plan.chunk,
        page_table=table.pages,
        window_table=table.window_pages,
        first_node=first_node,
    )
    attention.fill(plan.attention, scope)


def place_queries(
    plan: StepPlan, tree: DraftTree, *, table: RowTable, page_size: int, first_node: int = 0
) -> None:
    """Write all but the attention part: enough to write the KV of the query tokens."""
    of_tables = [(table.pages, plan.queries)]
    if plan.queries.window_slots.shape[0]:  # only slots differ
        own = replace(plan.queries, slots=plan.queries.window_slots)
        of_tables.append((table.window_pages, own))
    for pages, queries in of_tables:
        fill_queries(
            tree,
            plan.decode,
            plan.chunk,
            pages=pages,
            queries=queries,
            sampled=plan.sampled,
            page_size=page_size,
            first_node=first_node,
        )


def fill_adapters(plan: StepPlan, table: RowTable) -> None:
    """Write the adapter slot of every query token. Nothing to do in a step without adapters."""
    if not plan.shape.sampling_flags.adapters:
        return
    rows = torch.cat([_decode_rows(plan), plan.chunk.rows[plan.chunk.owners]])
    torch.index_select(table.adapters, 0, rows, out=plan.queries.adapters)


def fill_axes(plan: StepPlan, table: RowTable) -> None:
    """Write the shift of every rotary position. Nothing to do for positions with one axis."""
    shifts, of_chunks = plan.axes.shifts, plan.axes.of_chunks
    if not shifts.shape[1]:
        return
    num_decode = plan.shape.num_decode_query
    shifts[:, :num_decode] = table.shifts[_decode_rows(plan)]
    if plan.shape.has_axes:
        shifts[:, num_decode:] = of_chunks
    else:
        shifts[:, num_decode:].zero_()


def _decode_rows(plan: StepPlan) -> torch.Tensor:  # [num_decode_query]
    """The row of every query token of the decode rows."""
    rows = plan.decode.rows[:, None].expand(-1, plan.shape.nodes).flatten()
    if plan.shape.ragged:
        rows = rows[node_of_query(plan.queries.of_nodes, plan.shape.ragged)]
    return rows
