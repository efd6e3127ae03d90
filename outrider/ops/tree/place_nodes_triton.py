"""The query tokens of nodes, as in `place_nodes.py`, in one launch of one program."""
# Triton reads kernels as source; it has no types for them.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from typing import Any

import torch
import triton
import triton.language as tl

from outrider.ops import dependent_launch as overlap
from outrider.ops.tree.draft_tree import DraftTree

_NODES = 16  # at least: more than most trees have
_TILE = 4096  # nodes at a time
_FEW = 1024  # nodes that one warp counts without waiting for others


@triton.jit(do_not_specialize=range(4, 9), do_not_specialize_on_alignment=range(4))
def _place_kernel(
    tokens,
    ancestors,
    queries,  # written, as the next
    seen,
    token_stride,
    ancestor_stride,
    rows,
    nodes,
    num_query,
    ROWS: tl.constexpr,
    NODES: tl.constexpr,
    PDL: tl.constexpr,
):
    node, place = tl.arange(0, NODES)[None, :], tl.arange(0, ROWS)
    overlap.begin(PDL)
    total = 0
    for begin in range(0, rows, ROWS):  # how many nodes run
        row = begin + place[:, None]
        inside = (row < rows) & (node < nodes)
        token = tl.load(tokens + row.to(tl.int64) * token_stride + node, mask=inside, other=-1)
        total += tl.sum(tl.sum((token >= 0).to(tl.int32), axis=1), axis=0)
    total = tl.minimum(total, num_query)
    before = 0
    for begin in range(0, rows, ROWS):
        row = begin + place[:, None]
        inside = (row < rows) & (node < nodes)
        source = tokens + row.to(tl.int64) * token_stride + node
        own = tl.sum((tl.load(source, mask=inside, other=-1) >= 0).to(tl.int32), axis=1)
        ends = before + tl.cumsum(own, axis=0)
        # Later rows keep a query token each, whatever the rows before them want.
        room = begin + place + num_query - rows
        first = tl.minimum(ends - own, room)[:, None]
        count = tl.minimum(ends, room + 1)[:, None] - first
        spare = total + row * nodes - first + node - count
        query = tl.where(node < count, first + node, spare)
        query = tl.where(query < num_query, query, -1).to(tl.int64)
        tl.store(queries + row * nodes + node, query, mask=inside)
        tl.store(source, tl.full([ROWS, NODES], -1, tl.int64), mask=inside & (node >= count))
        path = ancestors + row.to(tl.int64) * ancestor_stride + node
        mask = tl.load(path, mask=inside & (node < count), other=1)
        tl.store(seen + row * nodes + node, mask, mask=inside)
        before += tl.sum(own, axis=0)


def place_nodes_triton(
    tree: DraftTree,  # int64
    queries: torch.Tensor,  # [rows, nodes] int64 contiguous, written
    *,
    num_query: int,
) -> torch.Tensor:  # [rows, nodes]
    """`place_nodes` in one launch."""
    tokens, ancestors = tree.tokens, tree.ancestors
    rows, nodes = tokens.shape
    seen = queries.new_empty(rows, nodes)
    width = max(_NODES, triton.next_power_of_2(nodes))
    at_once = min(_TILE // width, max(16, triton.next_power_of_2(rows)))
    kernel: Any = _place_kernel[(1,)]
    kernel(
        tokens,
        ancestors,
        queries,
        seen,
        tokens.stride(0),
        ancestors.stride(0),
        rows,
        nodes,
        num_query,
        ROWS=at_once,
        NODES=width,
        PDL=overlap.is_on(tokens),
        num_warps=1 if at_once * width <= _FEW else 8,
        **overlap.options(tokens),
    )
    return seen
