"""Verification of draft trees, as in `verify.py`: one program per row, one launch."""
# Triton reads kernels as source; it has no types for them.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from typing import Any

import torch
import triton
import triton.language as tl

from outrider.ops import dependent_launch as overlap
from outrider.ops.tree.draft_tree import DraftTree, VerifyResult

_NODES = 16  # at least: more than most trees have

# By argument index. Trees may be views with any alignment, and sizes change with the step: neither
# may compile the kernel again.
_POINTERS, _SIZES = range(9), range(9, 16)


@triton.jit(do_not_specialize=_SIZES, do_not_specialize_on_alignment=_POINTERS)
def _verify_kernel(
    tokens,
    parents,
    depths,
    ancestors,
    choice,
    path,
    num_accepted,
    emitted,
    drafted,
    token_stride,
    parent_stride,
    depth_stride,
    ancestor_stride,
    choice_stride,
    nodes,
    most_emitted,
    NODES: tl.constexpr,
    PDL: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    node = tl.arange(0, NODES)
    inside = node < nodes
    overlap.begin(PDL)
    token = tl.load(tokens + row * token_stride + node, mask=inside, other=-1)
    parent = tl.load(parents + row * parent_stride + node, mask=inside, other=-1)
    depth = tl.load(depths + row * depth_stride + node, mask=inside, other=0)
    ancestor = tl.load(ancestors + row * ancestor_stride + node, mask=inside, other=0)
    chosen = tl.load(choice + row * choice_stride + node, mask=inside, other=0)
    wanted = tl.load(choice + row * choice_stride + tl.maximum(parent, 0), mask=inside, other=0)

    # Node 0 was emitted before. Each agreed node has its own bit, so a sum is a union.
    is_agreed = ((token == wanted) | (parent < 0)) & inside
    agreed = tl.sum(is_agreed.to(tl.int64) << node.to(tl.int64), axis=0)
    is_alive = ((ancestor & agreed) == ancestor) & inside
    # The deepest node; of equally deep nodes the first.
    rank = tl.where(is_alive, depth * NODES + (NODES - 1 - node), -1)
    best = tl.max(rank, axis=0)
    tip = NODES - 1 - best % NODES
    deepest = best // NODES
    tip_ancestors = tl.sum(tl.where(node == tip, ancestor, 0), axis=0)
    last = tl.sum(tl.where(node == tip, chosen, 0), axis=0)

    # Each entry of the path is written once: by the node of that depth, or past the tip by the tip.
    on_path = ((tip_ancestors >> node.to(tl.int64)) & 1) > 0
    base = row * most_emitted
    is_written = on_path & inside & (depth < most_emitted)
    tl.store(path + base + depth, node.to(tl.int64), mask=is_written)
    tl.store(emitted + base + depth, chosen, mask=is_written)
    is_past = (node > deepest) & (node < most_emitted)
    tl.store(path + base + node, tip + tl.zeros([NODES], tl.int64), mask=is_past)
    tl.store(emitted + base + node, last + tl.zeros([NODES], tl.int64), mask=is_past)
    tl.store(num_accepted + row, deepest)
    is_draft = inside & (node > 0) & (token >= 0)
    tl.store(drafted + row, tl.sum(is_draft.to(tl.int64), axis=0))


def verify_triton(
    tree: DraftTree,  # int64
    choice: torch.Tensor,  # [rows, nodes] int64
    most_emitted: int,
) -> VerifyResult:
    """`verify` in one launch."""
    rows, nodes = choice.shape
    path = choice.new_empty(rows, most_emitted)
    num_accepted = choice.new_empty(rows)
    emitted, drafted = torch.empty_like(path), torch.empty_like(num_accepted)
    kernel: Any = _verify_kernel[(rows,)]
    kernel(
        tree.tokens,
        tree.parents,
        tree.depths,
        tree.ancestors,
        choice,
        path,
        num_accepted,
        emitted,
        drafted,
        tree.tokens.stride(0),
        tree.parents.stride(0),
        tree.depths.stride(0),
        tree.ancestors.stride(0),
        choice.stride(0),
        nodes,
        most_emitted,
        NODES=max(_NODES, triton.next_power_of_2(nodes)),
        PDL=overlap.is_on(choice),
        num_warps=1,
        **overlap.options(choice),
    )
    return VerifyResult(path=path, num_accepted=num_accepted, emitted=emitted, drafted=drafted)
