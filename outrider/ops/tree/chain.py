"""Draft trees without branches."""

from functools import cache

import torch

from outrider.ops.tree.draft_tree import DraftTree


def single_node(tokens: torch.Tensor) -> DraftTree:  # tokens [rows]
    """The tree of node 0 alone."""
    return chain(tokens[:, None])


def chain(tokens: torch.Tensor) -> DraftTree:  # tokens [rows, nodes]
    """The tree in which every node is the child of the node before it."""
    if tokens.is_cuda:
        from outrider.ops.tree.chain_triton import chain_triton

        return chain_triton(tokens)
    return chain_reference(tokens)


def chain_reference(tokens: torch.Tensor) -> DraftTree:  # tokens [rows, nodes]
    """The same in plain torch."""
    parents, depths, ancestors = _links(tokens.shape[1], tokens.device)
    return DraftTree(
        tokens=tokens,
        parents=parents.expand_as(tokens),
        depths=depths.expand_as(tokens),
        ancestors=ancestors.expand_as(tokens),
    )


@cache
def _links(
    nodes: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # [nodes] all
    """Parents, depths and ancestors of a chain, which nothing writes to."""
    node = torch.arange(nodes, device=device)
    own_bit = torch.ones_like(node) << node
    return node - 1, node, own_bit.cumsum(0)
