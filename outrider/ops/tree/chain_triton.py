"""Draft trees without branches, as in `chain.py`, in one launch."""
# Triton reads kernels as source; it has no types for them.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from typing import Any

import torch
import triton
import triton.language as tl

from outrider.ops import dependent_launch as overlap
from outrider.ops.tree.draft_tree import DraftTree

_BLOCK = 128


@triton.jit(do_not_specialize=range(3, 5), do_not_specialize_on_alignment=range(3))
def _chain_kernel(
    parents, depths, ancestors, num_items, nodes, BLOCK: tl.constexpr, PDL: tl.constexpr
):
    item = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    node = (item % nodes).to(tl.int64)
    inside = item < num_items
    overlap.begin(PDL)
    tl.store(parents + item, node - 1, mask=inside)
    tl.store(depths + item, node, mask=inside)
    # All bits up to its own; node 63 sets the sign bit.
    own_bit = tl.full([BLOCK], 1, tl.int64) << node
    tl.store(ancestors + item, own_bit | (own_bit - 1), mask=inside)


def chain_triton(tokens: torch.Tensor) -> DraftTree:  # tokens [rows, nodes]
    """`chain` in one launch."""
    parents, depths, ancestors = tokens.new_empty(3, *tokens.shape).unbind(0)
    kernel: Any = _chain_kernel[(triton.cdiv(tokens.numel(), _BLOCK),)]
    kernel(
        parents,
        depths,
        ancestors,
        tokens.numel(),
        tokens.shape[1],
        BLOCK=_BLOCK,
        PDL=overlap.is_on(tokens),
        **overlap.options(tokens),
    )
    return DraftTree(tokens=tokens, parents=parents, depths=depths, ancestors=ancestors)
