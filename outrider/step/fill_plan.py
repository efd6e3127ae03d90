"""The device's part of a plan: everything that follows from true lengths and the draft tree."""

import torch

from outrider.step.attention_backend import AttentionPlanner, AttentionScope
from outrider.step.draft_tree import DraftTree
from outrider.step.plan import ChunkRows, StepPlan, chunk_offsets
from outrider.step.row_table import RowTable


def resolve_lengths(plan: StepPlan, table: RowTable) -> None:
    """Look up how much each uniform row has cached; a drafter needs it before the tree exists."""
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
    if tree.tokens.is_cuda:
        _fill_on_gpu(plan, tree, table, page_size, first_node)
    else:
        _fill_queries(plan, tree, table, page_size, first_node)
        _fill_sampled(plan)
    attention.fill(
        plan.attention,
        AttentionScope(
            decode=plan.decode,
            ancestors=tree.ancestors,
            chunk=plan.chunk,
            page_table=table.pages,
            first_node=first_node,
        ),
    )


def _fill_on_gpu(
    plan: StepPlan, tree: DraftTree, table: RowTable, page_size: int, first_node: int
) -> None:
    """What `_fill_queries` and `_fill_sampled` write, in one launch."""
    from outrider.ops.tree.fill_plan_triton import fill_queries  # a CPU installation has no Triton

    queries, sampled, chunk = plan.queries, plan.sampled, plan.chunk
    fill_queries(
        nodes=(tree.tokens, tree.depths),
        decode=(plan.decode.rows, plan.decode.lengths),
        chunk=(chunk.rows, chunk.starts, chunk.counts, chunk.owners, chunk.tokens),
        pages=table.pages,
        queries=(queries.tokens, queries.positions, queries.slots),
        sampled=(sampled.index, sampled.rows, sampled.positions),
        page_size=page_size,
        first_node=first_node,
    )


def _fill_queries(
    plan: StepPlan, tree: DraftTree, table: RowTable, page_size: int, first_node: int
) -> None:
    shape, queries, decode = plan.shape, plan.queries, plan.decode
    split = [shape.num_decode_query, shape.chunk.tokens]
    positions, chunk_positions = torch.split(queries.positions, split)
    slots, chunk_slots = torch.split(queries.slots, split)
    # A node is seen at its depth (siblings share a position) but stored at its own index.
    node = torch.arange(first_node, first_node + shape.nodes, device=positions.device)
    stored = decode.lengths[:, None] + node  # [rows, nodes]
    torch.cat([tree.tokens.flatten(), plan.chunk.tokens], out=queries.tokens)
    queries.tokens.clamp_min_(0)  # absent nodes run as some token that nobody asks about
    positions.copy_((decode.lengths[:, None] + tree.depths).flatten())
    rows = decode.rows[:, None].expand_as(stored)
    slots.copy_(table.slots(rows, stored, page_size).flatten())
    chunk = plan.chunk
    chunk_positions.copy_(chunk.starts[chunk.owners] + chunk_offsets(chunk))
    is_real = chunk.rows[chunk.owners] > 0
    chunk_positions.mul_(is_real)
    chunk_slots.copy_(table.slots(chunk.rows[chunk.owners], chunk_positions, page_size))


def _fill_sampled(plan: StepPlan) -> None:
    shape, sampled, decode = plan.shape, plan.sampled, plan.decode
    nodes = torch.arange(shape.num_decode_query, device=sampled.index.device)
    ends = shape.num_decode_query + _last_tokens(plan.chunk)
    torch.cat([nodes, ends], out=sampled.index)
    torch.cat([decode.rows.repeat_interleave(shape.nodes), plan.chunk.rows], out=sampled.rows)
    torch.add(plan.queries.positions[sampled.index], 1, out=sampled.positions)


def _last_tokens(chunk: ChunkRows) -> torch.Tensor:  # [chunk.rows]
    """Index of each chunk's last token among the chunk tokens; padding may point anywhere valid."""
    return (chunk.counts.cumsum(0) - 1).clamp_min(0)
