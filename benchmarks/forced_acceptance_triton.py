"""The Triton form of `ForcedVerifier._agree`: one program per row, one launch."""
# Triton reads kernels as source; it has no types for them.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from typing import Any

import torch
import triton
import triton.language as tl

from outrider.ops import dependent_launch as overlap

_NODES = 16  # at least: more than most trees have

# By argument index. Trees may be views with any alignment, and sizes change with the step.
_POINTERS, _SIZES = range(10), range(10, 17)


@triton.jit
def _hashed(clock):
    """As `_hashed` of forced_acceptance.py."""
    value = ((clock ^ (clock >> 16)) * 0x85EBCA6B) & 0xFFFFFFFF
    value = ((value ^ (value >> 13)) * 0xC2B2AE35) & 0xFFFFFFFF
    return value ^ (value >> 16)


@triton.jit(do_not_specialize=_SIZES, do_not_specialize_on_alignment=_POINTERS)
def _agree_kernel(
    tokens,
    parents,
    depths,
    ancestors,
    choice,
    clock,
    thresholds,
    cut,
    agreeing,
    drafted,
    token_stride,
    parent_stride,
    depth_stride,
    ancestor_stride,
    choice_stride,
    nodes,
    pace,
    NODES: tl.constexpr,
    DEPTHS: tl.constexpr,  # thresholds; 0: there are none
    PDL: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    node = tl.arange(0, NODES)
    inside = node < nodes
    overlap.begin(PDL)
    due = tl.load(clock + row) + pace
    tl.store(clock + row, due & 0xFFFFFFFF)
    if DEPTHS:
        levels = tl.load(thresholds + tl.arange(0, DEPTHS))
        most_accepted = tl.sum((_hashed(due & 0xFFFFFFFF) < levels).to(tl.int64), axis=0)
    else:
        most_accepted = (due >> 32) - 1

    token = tl.load(tokens + row * token_stride + node, mask=inside, other=-1)
    parent = tl.load(parents + row * parent_stride + node, mask=inside, other=-1)
    depth = tl.load(depths + row * depth_stride + node, mask=inside, other=0)
    ancestor = tl.load(ancestors + row * ancestor_stride + node, mask=inside, other=0)
    chosen = tl.load(choice + row * choice_stride + node, mask=inside, other=0)

    # The deepest, and of equally deep ones the first.
    rank = tl.where(inside & (token >= 0), depth * NODES + (NODES - 1 - node), -1)
    tip = NODES - 1 - tl.max(rank, axis=0) % NODES
    tip_ancestors = tl.sum(tl.where(node == tip, ancestor, 0), axis=0)
    on_path = ((tip_ancestors >> node.to(tl.int64)) & 1) > 0
    is_accepted = on_path & inside & (depth > 0) & (depth <= most_accepted)

    # The parent of an accepted node chooses the node's token: a path has one child per parent.
    is_child = is_accepted[None, :] & (parent[None, :] == node[:, None])  # [parent, child]
    child = tl.sum(tl.where(is_child, token[None, :], 0), axis=1)
    has_child = tl.sum(is_child.to(tl.int32), axis=1) > 0
    base = row * nodes
    tl.store(agreeing + base + node, tl.where(has_child, child, chosen), mask=inside)
    tl.store(cut + base + node, tl.where(depth > most_accepted, -1, token), mask=inside)
    is_draft = inside & (node > 0) & (token >= 0)
    tl.store(drafted + row, tl.sum(is_draft.to(tl.int64), axis=0))


def agree(
    tree: tuple[torch.Tensor, ...],  # tokens, parents, depths, ancestors: [rows, nodes] int64
    choice: torch.Tensor,  # [rows, nodes] int64
    clock: torch.Tensor,  # [rows or more] int64, advanced
    pace: int,
    thresholds: torch.Tensor | None = None,  # [a power of two] int64 fixed point, descending
) -> tuple[torch.Tensor, ...]:  # cut tokens, agreeing choice: [rows, nodes]; drafted [rows]
    """Tokens and choices with which `verify` accepts the forced number in each row."""
    rows, nodes = choice.shape
    cut = choice.new_empty(rows, nodes)
    agreeing, drafted = torch.empty_like(cut), choice.new_empty(rows)
    kernel: Any = _agree_kernel[(rows,)]
    kernel(
        *tree,
        choice,
        clock,
        clock if thresholds is None else thresholds,
        cut,
        agreeing,
        drafted,
        *(tensor.stride(0) for tensor in tree),
        choice.stride(0),
        nodes,
        pace,
        NODES=max(_NODES, triton.next_power_of_2(nodes)),
        DEPTHS=0 if thresholds is None else thresholds.numel(),
        PDL=overlap.is_on(choice),
        num_warps=1,
        **overlap.options(choice),
    )
    return cut, agreeing, drafted
