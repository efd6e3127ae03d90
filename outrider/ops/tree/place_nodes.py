"""Which query token runs each node of a ragged step: the nodes of all rows one after another."""

import torch

from outrider.ops.tree.draft_tree import DraftTree


def place_nodes(
    tree: DraftTree,  # absent nodes come last; its tokens are written
    queries: torch.Tensor,  # [rows, nodes] int64 written: -1 for a node without a query token
    *,
    num_query: int,  # at least one for each row
) -> torch.Tensor:  # [rows, nodes] ancestors for attention, where an absent node reads node 0 alone
    """Number the nodes that run. Absent nodes get the query tokens that are left, as padding.

    Nodes that find no room become absent: a drafter that ignores budgets loses drafts.
    """
    if tree.tokens.is_cuda:
        from outrider.ops.tree.place_nodes_triton import place_nodes_triton

        return place_nodes_triton(tree, queries, num_query=num_query)
    return place_nodes_reference(tree, queries, num_query=num_query)


def place_nodes_reference(
    tree: DraftTree,
    queries: torch.Tensor,  # [rows, nodes] written
    *,
    num_query: int,
) -> torch.Tensor:  # [rows, nodes]
    """The same in plain torch."""
    (rows, nodes), device = tree.tokens.shape, queries.device
    row, node = torch.arange(rows + 1, device=device), torch.arange(nodes, device=device)
    ends = (tree.tokens >= 0).sum(1).cumsum(0)
    # Later rows keep a query token each, whatever the rows before them want.
    starts = torch.minimum(torch.cat([row[:1], ends]), row + num_query - rows)
    first, count, total = starts[:-1, None], starts.diff()[:, None], starts[-1]
    num_absent = row[:-1, None] * nodes - first  # in the rows before
    spare = total + num_absent + node - count
    queries.copy_(torch.where(node < count, first + node, spare))
    queries.masked_fill_(queries >= num_query, -1)
    tree.tokens.masked_fill_(node >= count, -1)
    return torch.where(node < count, tree.ancestors, 1)


def node_of_query(queries: torch.Tensor, num_query: int) -> torch.Tensor:  # [num_query]
    """The node, as an index into [rows * nodes], of each query token of decode rows."""
    flat = queries.flatten()
    out = flat.new_empty(num_query + 1)
    node = torch.arange(flat.shape[0], device=flat.device)
    return out.index_copy_(0, flat.where(flat >= 0, num_query), node)[:num_query]


def values_of_nodes(
    values: torch.Tensor,  # [num_query, ...]
    queries: torch.Tensor,  # [rows, nodes]
) -> torch.Tensor:  # [rows * nodes, ...]
    """The value of each node's query token; any value for a node without one."""
    return values.index_select(0, queries.flatten().clamp_min(0))
