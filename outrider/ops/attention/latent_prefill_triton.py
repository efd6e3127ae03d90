"""Causal latent attention of prompt chunks over paged latents, in Triton.

Splits and their merging are those of `latent_decode_triton.py`, so a token has the same bits in any
chunk and as a decode row. A tile reads all splits of its texts.
"""
# Triton reads kernels as source; it has no types for them.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from typing import Any

import torch
import triton
import triton.language as tl

from outrider.ops import dependent_launch as overlap
from outrider.ops.attention.latent_blocks_triton import add_history
from outrider.ops.attention.latent_decode_triton import LatentTiles, latent_tiles
from outrider.ops.attention.latent_slices_triton import (
    keep_split,
    latent_split_start,
    num_latent_splits,
)
from outrider.ops.attention.prefill_triton import find_tile, most_tiles
from outrider.ops.attention.softmax_blocks_triton import LOG2_E, sum_places
from outrider.ops.attention.splits_triton import (
    EXACT,
    MOST_PARTIALS,
    NOTHING_SEEN,
    cut,
    dim_tile,
    mean,
)


@triton.jit(
    do_not_specialize=[
        "pages", "bounds", "part_max", "part_sum", "num_pages", "num_chunks", "last_tile",
        "num_splits", "levels", "size",
    ]
)  # fmt: skip
def _attend_kernel(
    query, layer, out, pages, bounds, part_acc, part_max, part_sum,
    query_stride, num_pages, num_chunks, last_tile, num_splits, levels, size, scale,
    HEADS: tl.constexpr, LATENT: tl.constexpr, ROPE: tl.constexpr, LATENT_DIM: tl.constexpr,
    ROPE_DIM: tl.constexpr, PAGE_SIZE: tl.constexpr, CHUNKS: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, STAGES: tl.constexpr, SINGLE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """A split has `size` latents, or twice as many. SINGLE: one split per text."""
    column, rope_channel = tl.arange(0, LATENT_DIM), tl.arange(0, ROPE_DIM)
    overlap.begin(PDL)
    flat = last_tile - tl.program_id(0)  # the longest tiles start first
    chunk, tile = find_tile(flat, bounds, num_chunks, HEADS, CHUNKS, BLOCK_M)
    if chunk < num_chunks:
        place = tile * BLOCK_M + tl.arange(0, BLOCK_M)
        offset, head = place // HEADS, place % HEADS
        start = tl.load(bounds + chunk)
        first = tl.load(bounds + num_chunks + chunk)
        count = tl.load(bounds + 2 * num_chunks + chunk)
        token = (first + offset).to(tl.int64)
        is_real, index = offset < count, token * HEADS + head
        wanted = is_real[:, None] & (column < LATENT)[None, :]
        source = query + token[:, None] * query_stride + head[:, None] * (LATENT + ROPE)
        latent_query = tl.load(source + column[None, :], mask=wanted, other=0.0)
        rope_query = tl.load(
            source + LATENT + rope_channel[None, :],
            mask=is_real[:, None] & (rope_channel < ROPE)[None, :],
            other=0.0,
        )
        own, own_pages = start + offset, pages + chunk.to(tl.int64) * num_pages
        last = tl.minimum((tile * BLOCK_M + BLOCK_M - 1) // HEADS, count - 1)
        # A padding chunk may be longer than any text of the step.
        end = tl.minimum(start + last + 1, num_pages * PAGE_SIZE)
        shortest = start + tile * BLOCK_M // HEADS + 1
        # Every program has places of its own: one per level, and one for its result.
        stride = tl.num_programs(0).to(tl.int64) * BLOCK_M
        own_place = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
        for split in range(0, num_splits):
            begin = latent_split_start(split, size)
            stop = tl.minimum(latent_split_start(split + 1, size), end)
            if begin < stop:
                running_max, sums, acc = add_history(
                    tl.full([BLOCK_M], NOTHING_SEEN, tl.float32),
                    tl.zeros([BLOCK_M, BLOCK_N], tl.float32),
                    tl.zeros([BLOCK_M, LATENT_DIM], tl.float32), latent_query, rope_query, layer,
                    own_pages, own + 1, shortest, begin, stop, scale,
                    LATENT, ROPE, LATENT_DIM, ROPE_DIM, PAGE_SIZE, BLOCK_N, STAGES,
                )  # fmt: skip
                running_sum = sum_places(sums, False)
                if SINGLE:
                    target = out + index[:, None] * LATENT + column[None, :]
                    share = mean(acc, running_sum, BLOCK_M)
                    tl.store(target, share.to(out.dtype.element_ty), mask=wanted)
                else:
                    keep_split(
                        running_max, running_sum, acc, out, part_acc, part_max, part_sum, index,
                        is_real, own_place, stride, split, levels, stop == end,
                        BLOCK_M, LATENT, LATENT_DIM, True,
                    )  # fmt: skip


def attend_latent_chunks(
    query: torch.Tensor,  # [chunk.tokens, heads, latent + rope], heads side by side
    layer: torch.Tensor,  # [pages, page_size, 1, latent + rope] contiguous
    out: torch.Tensor,  # [chunk.tokens, heads, latent] contiguous
    *,
    pages: torch.Tensor,  # [chunks, pages] int32
    bounds: torch.Tensor,  # [3, chunks] int32
    scale: float,
    tiles: LatentTiles | None = None,
) -> None:
    """Causal attention of all chunk tokens. The launches depend on their total only.

    A launch has as many tiles as the workspace has room for.
    """
    heads, channels = query.shape[1:]
    latent, page_size = out.shape[2], layer.shape[1]
    tiles = tiles or latent_tiles(heads, latent, query.dtype)
    assert query.stride()[1:] == (channels, 1), "the heads of a token lie side by side"
    num_chunks = bounds.shape[1]
    num_tiles = most_tiles(query.shape[0] * heads, num_chunks, tiles.rows)
    splits = num_latent_splits(pages.shape[1] * page_size, split=tiles.split)
    levels = (splits - 1).bit_length()
    per_tile = 0 if splits == 1 else tiles.rows * (levels + 1)  # partial results
    at_once = min(num_tiles, MOST_PARTIALS // (max(per_tile, 1) * (latent + 2)))
    space = query.new_empty(at_once * per_tile * (latent + 2), dtype=torch.float32)
    parts = cut(space, at_once * per_tile, latent)
    for first in range(0, num_tiles, at_once):
        kernel: Any = _attend_kernel[(min(at_once, num_tiles - first),)]
        kernel(
            query, layer, out, pages, bounds, parts.values, parts.maxima, parts.weights,
            query.stride(0), pages.shape[1], num_chunks, num_tiles - 1 - first,
            splits, levels, tiles.split, scale * LOG2_E,
            HEADS=heads, LATENT=latent, ROPE=channels - latent, LATENT_DIM=dim_tile(latent),
            ROPE_DIM=dim_tile(channels - latent), PAGE_SIZE=page_size,
            CHUNKS=triton.next_power_of_2(num_chunks),
            BLOCK_M=tiles.rows, BLOCK_N=tiles.keys, STAGES=tiles.num_stages, SINGLE=splits == 1,
            PDL=overlap.is_on(query), num_warps=tiles.num_warps, num_stages=tiles.num_stages,
            **EXACT, **overlap.options(query),
        )  # fmt: skip
