"""Writes in which order attention sums over the nodes of draft trees, once per step."""

import torch

from outrider.config.draft_config import MAX_NODES
from outrider.ops.attention.ordered_attention import BLOCK, TreeOrder


def fill_tree_order(
    order: TreeOrder,  # written
    ancestors: torch.Tensor,  # [rows, nodes] int64 bitmask over the nodes of the row's tree
    lengths: torch.Tensor,  # [rows] int64 cached tokens; node n is stored at slot length + n
    *,
    first: int,  # node of `ancestors`
) -> None:
    """Write the slots of every node's path, and the block of every slot's position.

    A draft step, whose first node is not 0, sums in the order of slots: drafts need no fixed bits.
    """
    rows, nodes = ancestors.shape
    node = torch.arange(nodes, device=lengths.device)
    torch.add(lengths[:, None], node, out=order.tail)
    if first:
        path, depths = node.expand(rows, nodes, nodes), node.expand(rows, nodes)
    else:
        is_ancestor = (ancestors[:, :, None] >> node & 1).bool()  # [rows, nodes, nodes]
        # Ancestors have lower indices, so a stable sort puts them first, by depth.
        path = (~is_ancestor).to(torch.uint8).argsort(dim=2, stable=True)
        # Slots of a draft block also see later ones: there a slot is its own depth.
        depths = torch.minimum((is_ancestor.sum(2) - 1).clamp_min(0), node)  # [rows, nodes]
    torch.add(lengths[:, None, None], path, out=order.path)
    torch.add(lengths[:, None, None], path.argsort(dim=2), out=order.back)
    _fill_blocks(order, lengths[:, None] + depths)


def _fill_blocks(
    order: TreeOrder,
    positions: torch.Tensor,  # [rows, nodes] int64 of the nodes
) -> None:
    """Write which slots after the begin of a block have a position in it."""
    (rows, num_blocks, reach), device = order.own.shape, positions.device
    # A slot of the text is its own position. Past the text slots have no weight.
    position = torch.arange(num_blocks * BLOCK + MAX_NODES, device=device).repeat(rows, 1)
    position.scatter_(1, order.tail, positions)
    first = BLOCK * torch.arange(num_blocks, device=device)[:, None]
    slot = first + torch.arange(reach, device=device)  # [blocks, reach]
    order.own.copy_(position[:, slot] // BLOCK == first // BLOCK)
