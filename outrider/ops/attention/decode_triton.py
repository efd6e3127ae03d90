"""Attention of uniform rows over paged KV: decode, chains, trees and draft levels, in Triton.

Every node is a plain decode over its own path. Keys are taken in blocks and splits at fixed
absolute positions, so the bits of a node depend on its text alone, not on tree, batch or shape.
"""
# Triton reads kernels as source; it has no types for them.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from outrider.ops import dependent_launch as overlap
from outrider.ops import gpu_facts as device
from outrider.ops.attention.splits_triton import (
    EXACT,
    NOTHING_SEEN,
    SPLIT,
    combine,
    cut,
    dim_tile,
    mean,
    merge,
    num_splits,
    partial_width,
    split_start,
    splits_before,
)
from outrider.ops.attention.tree_paths_triton import MAX_NODES, path_slots, slots_of

FEW_ROWS = 4  # up to here a step does not fill the GPU
ROOMY = 128 << 10  # bytes of shared memory that hold one block more of any head dim
# Of history, per layer: what the tiles of a tree may read again from the cache of a GPU,
CACHED_BYTES = 16 << 20  # measured at 8 rows of 16 nodes,
IDLE_CACHED_BYTES = 64 << 20  # and at most at FEW_ROWS rows
LOG2_E = 1.4426950408889634

_MAX_NODES = tl.constexpr(MAX_NODES)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeTiles:
    """Sizes of the uniform kernel. Keys, split and warps follow from the model alone; the others
    change no bits.

    A tile of 16 or 32 rows runs the same mma instruction, with warps along keys and head dim.
    """

    rows: int = 32  # (node, head) pairs of a tile at most
    keys: int = 64
    split: int = SPLIT
    num_warps: int = 4
    num_stages: int = 3
    many: int = 256  # tiles of a step that fill a GPU without splits side by side
    worth: int = 64  # tiles for which another split in a row costs less than a merging launch


def decode_tiles(
    head_dim: int,
    dtype: torch.dtype,
    *,
    packed: int = 32,
    num_rows: int = 1,
    shared: int = device.HOPPER_SHARED,
) -> DecodeTiles:
    """The tiles of a model, for steps with so many (node, head) pairs in a row and kv head."""
    if dtype == torch.float32:  # no tensor cores: operands are held in registers
        return DecodeTiles(rows=16, keys=32, num_warps=8, num_stages=2)
    # Smaller tiles read the history more often, but finish sooner while most SMs are idle.
    # Below a head dim of 64 the warps of the two sizes would lie differently.
    is_small = head_dim >= 64 and (packed <= 16 or num_rows <= FEW_ROWS)
    rows = 16 if is_small else 32
    # One more block on its way pays where a step fills the GPU, but not several times over.
    fills = is_small and 2 * FEW_ROWS < num_rows <= 16 * FEW_ROWS
    stages = 4 if fills and shared >= ROOMY else 3
    return DecodeTiles(rows=rows, keys=64 if head_dim <= 128 else 32, num_stages=stages)


@triton.jit
def _see(
    state_max, sums, acc, query, keys, slots, is_visible, scale,
    KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    """One block of keys and values enters the running softmax, which is in base 2.

    Weights are summed by place in their block, over places once at the end: that needs no barrier.
    """
    column = tl.arange(0, DIM)
    source = keys + slots[:, None] * (2 * KV_HEADS * HEAD_DIM) + column[None, :]
    wanted = (slots >= 0)[:, None] & (column < HEAD_DIM)[None, :]
    key = tl.load(source, mask=wanted, other=0.0)
    value = tl.load(source + KV_HEADS * HEAD_DIM, mask=wanted, other=0.0)
    score = tl.dot(query, tl.trans(key), input_precision="ieee")
    score = tl.where(is_visible, score, float("-inf"))
    new_max = tl.maximum(state_max, tl.max(score, 1) * scale)
    weight = tl.exp2(tl.fma(score, scale, -new_max[:, None]))
    kept = tl.exp2(state_max - new_max)
    sums = sums * kept[:, None] + weight
    acc = tl.dot(weight.to(value.dtype), value, acc * kept[:, None], input_precision="ieee")
    return new_max, sums, acc


@triton.jit
def _see_history(
    state_max, sums, acc, query, keys, slots, pages, limit, begin, end, scale,
    KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Keys in [begin, end) that lie at their own positions, the same for all rows of the tile."""
    offset = tl.arange(0, BLOCK_N)
    slots = tl.where(begin + offset < end, slots, -1)
    for start in range(begin, end, BLOCK_N):
        position = start + offset
        # Looked up one block ahead, so that the loads of keys and values wait for nobody.
        ahead = slots_of(position + BLOCK_N, end, end, pages, pages, PAGE_SIZE, False)
        is_visible = position[None, :] < limit[:, None]
        state_max, sums, acc = _see(
            state_max, sums, acc, query, keys, slots, is_visible, scale,
            KV_HEADS, HEAD_DIM, DIM,
        )  # fmt: skip
        slots = ahead
    return state_max, sums, acc


@triton.jit
def _see_paths(
    state_max, sums, acc, query, keys, pages, limits, tails, limit, node, nodes, length,
    begin, end, scale,
    KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Keys in [begin, end) along the path of each node of the tile, seen by that node alone."""
    first, last = tl.min(node, 0), tl.minimum(tl.max(node, 0), nodes - 1)
    steps = tl.cdiv(tl.maximum(end - begin, 0), BLOCK_N)
    divisor = tl.maximum(steps, 1)
    slots = path_slots(
        0, divisor, first, begin, end, length, limits, tails, pages, PAGE_SIZE, BLOCK_N
    )  # fmt: skip
    for step in range(0, (last - first + 1) * steps):
        position = begin + step % divisor * BLOCK_N + tl.arange(0, BLOCK_N)
        is_own = node == first + step // divisor
        ahead = path_slots(
            tl.minimum(step + 1, (last - first + 1) * steps - 1), divisor, first, begin, end,
            length, limits, tails, pages, PAGE_SIZE, BLOCK_N,
        )  # fmt: skip
        is_visible = (position[None, :] < limit[:, None]) & is_own[:, None]
        state_max, sums, acc = _see(
            state_max, sums, acc, query, keys, slots, is_visible, scale,
            KV_HEADS, HEAD_DIM, DIM,
        )  # fmt: skip
        slots = ahead
    return state_max, sums, acc


@triton.jit
def _see_split(
    query, keys, slots, pages, limits, tails, limit, node, nodes, length, begin, end, scale,
    KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr, PAGE_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, TREE: tl.constexpr,
):  # fmt: skip
    """Keys in [begin, end), of which the first block lies in `slots`, and nothing before them."""
    # Blocks that reach past the history are seen along each node's own path.
    border = length // BLOCK_N * BLOCK_N if TREE else end
    state_max, sums, acc = _see_history(
        tl.full([BLOCK_M], NOTHING_SEEN, tl.float32), tl.zeros([BLOCK_M, BLOCK_N], tl.float32),
        tl.zeros([BLOCK_M, DIM], tl.float32), query, keys, slots, pages, limit,
        begin, tl.minimum(border, end), scale, KV_HEADS, HEAD_DIM, DIM, PAGE_SIZE, BLOCK_N,
    )  # fmt: skip
    if TREE:
        state_max, sums, acc = _see_paths(
            state_max, sums, acc, query, keys, pages, limits, tails, limit, node, nodes, length,
            tl.maximum(begin, border), end, scale, KV_HEADS, HEAD_DIM, DIM, PAGE_SIZE, BLOCK_N,
        )  # fmt: skip
    return state_max, tl.sum(sums, 1), acc


@triton.jit
def _see_splits(
    query, keys, slots, pages, limits, tails, limit, node, nodes, length, most, scale,
    KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr, PAGE_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """All keys of a tree, one split after another."""
    longest, offset = tl.max(limit, 0), tl.arange(0, BLOCK_N)
    total_max = tl.full([BLOCK_M], NOTHING_SEEN, tl.float32)
    total_sum, total = tl.zeros([BLOCK_M], tl.float32), tl.zeros([BLOCK_M, DIM], tl.float32)
    for split in range(0, splits_before(longest, SPLIT)):
        begin, after = split_start(split, SPLIT), split_start(split + 1, SPLIT)
        state_max, state_sum, acc = _see_split(
            query, keys, slots, pages, limits, tails, limit, node, nodes, length,
            begin, tl.minimum(after, longest), scale,
            KV_HEADS, HEAD_DIM, DIM, PAGE_SIZE, BLOCK_M, BLOCK_N, True,
        )  # fmt: skip
        slots = slots_of(after + offset, most, most, pages, pages, PAGE_SIZE, False)
        total_max, total_sum, total = merge(total_max, total_sum, total, state_max, state_sum, acc)
    return total_sum, total


@triton.jit
def _see_whole(
    query, keys, slots, pages, limit, scale,
    KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr, PAGE_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """All keys of a chain. The same as split after split, but loads run on over their borders."""
    longest, offset = tl.max(limit, 0), tl.arange(0, BLOCK_N)
    nothing = tl.full([BLOCK_M], NOTHING_SEEN, tl.float32)
    no_sums, no_acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32), tl.zeros([BLOCK_M, DIM], tl.float32)
    state_max, sums, acc, total_max = nothing, no_sums, no_acc, nothing
    total_sum, total = tl.zeros([BLOCK_M], tl.float32), tl.zeros([BLOCK_M, DIM], tl.float32)
    split, border = 1, split_start(1, SPLIT)
    slots = tl.where(offset < longest, slots, -1)
    for start in range(0, longest, BLOCK_N):
        position = start + offset
        ahead = slots_of(position + BLOCK_N, longest, longest, pages, pages, PAGE_SIZE, False)
        is_visible = position[None, :] < limit[:, None]
        state_max, sums, acc = _see(
            state_max, sums, acc, query, keys, slots, is_visible, scale, KV_HEADS, HEAD_DIM, DIM,
        )  # fmt: skip
        slots = ahead
        if start + BLOCK_N == border:
            total_max, total_sum, total = merge(
                total_max, total_sum, total, state_max, tl.sum(sums, 1), acc
            )
            state_max, sums, acc = nothing, no_sums, no_acc
            split += 1
            border = split_start(split, SPLIT)
    total_max, total_sum, total = merge(
        total_max, total_sum, total, state_max, tl.sum(sums, 1), acc
    )
    return total_sum, total


@triton.jit(
    do_not_specialize=[
        "pages", "lengths", "limits", "tails", "part_max", "part_sum",
        "nodes", "spread", "num_pages", "num_tiles",
    ]
)  # fmt: skip
def _attend_kernel(
    query, layer, out, pages, lengths, limits, tails, part_acc, part_max, part_sum,
    query_stride, nodes, spread, num_pages, num_tiles, scale,
    GROUP: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SPLIT: tl.constexpr,
    TREE: tl.constexpr, WHOLE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """A tile sees one split, or, WHOLE, all of them one after another."""
    # Tiles of one row that read the same keys are neighbours; long splits start first.
    tile, kv_head = tl.program_id(0) % num_tiles, tl.program_id(0) // num_tiles
    row, split = tl.program_id(1), tl.num_programs(2) - 1 - tl.program_id(2)
    channel, column = tl.arange(0, BLOCK_M), tl.arange(0, DIM)
    place = tile * spread * GROUP + channel
    is_real = (channel < spread * GROUP) & (place < nodes * GROUP)
    node = tl.minimum(place // GROUP, tile * spread + spread - 1)
    token, head = row * nodes + node, kv_head * GROUP + place % GROUP
    index = token.to(tl.int64) * (KV_HEADS * GROUP) + head
    wanted = is_real[:, None] & (column < HEAD_DIM)[None, :]
    source = query + token.to(tl.int64)[:, None] * query_stride + head[:, None] * HEAD_DIM
    own_pages, keys = pages + row.to(tl.int64) * num_pages, layer + kv_head * HEAD_DIM
    own_limits, own_tails = limits + row * nodes, tails + row * nodes * _MAX_NODES
    begin, offset, most = split_start(split, SPLIT), tl.arange(0, BLOCK_N), num_pages * PAGE_SIZE
    overlap.begin(PDL)
    # All that does not wait for the limits is asked for together with them.
    limit, length = tl.load(limits + token, mask=is_real, other=0), tl.load(lengths + row)
    q = tl.load(source + column[None, :], mask=wanted, other=0.0)
    slots = slots_of(begin + offset, most, most, own_pages, own_pages, PAGE_SIZE, False)
    longest = tl.max(limit, 0)
    if WHOLE:
        if TREE:
            total_sum, total = _see_splits(
                q, keys, slots, own_pages, own_limits, own_tails, limit, node, nodes, length, most,
                scale, KV_HEADS, HEAD_DIM, DIM, PAGE_SIZE, BLOCK_M, BLOCK_N, SPLIT,
            )  # fmt: skip
        else:
            total_sum, total = _see_whole(
                q, keys, slots, own_pages, limit, scale,
                KV_HEADS, HEAD_DIM, DIM, PAGE_SIZE, BLOCK_M, BLOCK_N, SPLIT,
            )  # fmt: skip
        target = out + index[:, None] * HEAD_DIM + column[None, :]
        tl.store(target, mean(total, total_sum, BLOCK_M).to(out.dtype.element_ty), mask=wanted)
    else:
        end = tl.minimum(split_start(split + 1, SPLIT), longest)
        if begin < end:
            state_max, state_sum, acc = _see_split(
                q, keys, slots, own_pages, own_limits, own_tails, limit, node, nodes, length,
                begin, end, scale,
                KV_HEADS, HEAD_DIM, DIM, PAGE_SIZE, BLOCK_M, BLOCK_N, TREE,
            )  # fmt: skip
            index += tl.num_programs(1).to(tl.int64) * nodes * (KV_HEADS * GROUP) * split
            is_seen = is_real & (begin < limit)
            tl.store(part_max + index, state_max, mask=is_seen)
            tl.store(part_sum + index, state_sum, mask=is_seen)
            target = part_acc + index[:, None] * HEAD_DIM + column[None, :]
            tl.store(target, acc, mask=wanted & is_seen[:, None])


def attend_decode(
    query: torch.Tensor,  # [rows * nodes, heads, head_dim], heads side by side, any token stride
    layer: torch.Tensor,  # [pages, page_size, 2 * kv_heads, head_dim] contiguous
    out: torch.Tensor,  # [rows * nodes, heads, head_dim] contiguous
    *,
    pages: torch.Tensor,  # [rows, pages] int32
    lengths: torch.Tensor,  # [rows] int32
    limits: torch.Tensor,  # [rows * nodes] int32
    tails: torch.Tensor,  # [rows * nodes, 64] int32
    partials: torch.Tensor,  # [num_partials or more] float32
    scale: float,
    is_tree: bool,
    tiles: DecodeTiles | None = None,
) -> None:
    """Attention of every node over its own text, in bf16, fp16 or fp32; sums are in fp32.

    Where rows fill the device, each tile sees its text whole; else splits run side by side, and
    as many rows at once as the workspace has room for.
    """
    num_rows, (num_tokens, heads, head_dim) = lengths.shape[0], query.shape
    assert query.stride()[1:] == (head_dim, 1), "the heads of a token lie side by side"
    nodes, keys = num_tokens // num_rows, pages.shape[1] * layer.shape[1]
    packed = nodes * heads // (layer.shape[2] // 2)
    shared = device.shared_bytes(query)
    tiles = tiles or decode_tiles(
        head_dim, query.dtype, packed=packed, num_rows=num_rows, shared=shared
    )
    splits = num_splits(keys, split=tiles.split)
    is_whole = _is_whole(tiles, num_tiles=num_rows * layer.shape[2] // 2, splits=splits)
    per_row = nodes * splits * partial_width(heads, head_dim)
    at_once = num_rows if is_whole else min(num_rows, partials.numel() // per_row)
    for first in range(0, num_rows, at_once):
        rows, tokens = (
            slice(first, first + at_once),
            slice(first * nodes, (first + at_once) * nodes),
        )
        count = splits * limits[tokens].shape[0] * heads
        parts = [partials] * 3 if is_whole else cut(partials, count, head_dim)
        inputs = [pages[rows], lengths[rows], limits[tokens], tails[tokens]]
        side_by_side = 1 if is_whole else splits
        _attend(
            query[tokens], layer, out[tokens], inputs, parts,
            side_by_side, scale, tiles, is_tree=is_tree, is_whole=is_whole,
        )  # fmt: skip
        if not is_whole:
            combine(parts, out[tokens], limits[tokens], tiles.split)


def _is_whole(tiles: DecodeTiles, *, num_tiles: int, splits: int) -> bool:
    """Whether each tile sees its text whole, rather than splits side by side."""
    return num_tiles >= tiles.many or splits <= 1 + num_tiles // tiles.worth


def _attend(
    query: torch.Tensor,
    layer: torch.Tensor,
    out: torch.Tensor,
    inputs: list[torch.Tensor],  # pages, lengths, limits, tails
    parts: list[torch.Tensor],
    splits: int,  # side by side
    scale: float,
    tiles: DecodeTiles,
    *,
    is_tree: bool,
    is_whole: bool,
) -> None:
    heads, head_dim = query.shape[1:]
    num_rows, num_pages = inputs[0].shape
    kv_heads, page_size, nodes = layer.shape[2] // 2, layer.shape[1], query.shape[0] // num_rows
    group = heads // kv_heads
    spread = tiles.rows // group
    if is_tree:
        row_bytes = num_pages * page_size * kv_heads * 2 * head_dim * layer.element_size()
        spread = _spread(spread, num_rows=num_rows, nodes=nodes, row_bytes=row_bytes)
    num_tiles = triton.cdiv(nodes, spread)
    kernel: Any = _attend_kernel[(num_tiles * kv_heads, num_rows, splits)]
    kernel(
        query, layer, out, *inputs, *parts,
        query.stride(0), nodes, spread, num_pages, num_tiles, scale * LOG2_E,
        GROUP=group, KV_HEADS=kv_heads, HEAD_DIM=head_dim,
        DIM=dim_tile(head_dim), PAGE_SIZE=page_size,
        BLOCK_M=tiles.rows, BLOCK_N=tiles.keys, SPLIT=tiles.split,
        TREE=is_tree, WHOLE=is_whole, PDL=overlap.is_on(query),
        num_warps=tiles.num_warps, num_stages=tiles.num_stages, **EXACT, **overlap.options(query),
    )  # fmt: skip


def _spread(most: int, *, num_rows: int, nodes: int, row_bytes: int) -> int:
    """Nodes of a tile of a tree. They take turns on their paths, so few are better while the
    history, which every tile reads again, comes from the cache.
    """
    spread, limit = 1, IDLE_CACHED_BYTES if num_rows <= FEW_ROWS else CACHED_BYTES
    while spread < most and num_rows * -(-nodes // spread) * row_bytes > limit:
        spread *= 2
    return min(spread, most)
