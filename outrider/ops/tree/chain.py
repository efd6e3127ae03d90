"""Draft trees without branches."""

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
    node = torch.arange(tokens.shape[1], device=tokens.device)
    own_bit = torch.ones_like(node) << node
    return DraftTree(
        tokens=tokens,
        parents=(node - 1).expand_as(tokens),
        depths=node.expand_as(tokens),
        ancestors=own_bit.cumsum(0).expand_as(tokens),
    )
