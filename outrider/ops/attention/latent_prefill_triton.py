"""Causal latent attention of prompt chunks over paged latents, in Triton.

Like `prefill_triton.py`: latents are read in blocks from position 0 on, so chunk borders change no
bit.
"""
# Triton reads kernels as source; it has no types for them.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from typing import Any

import torch
import triton
import triton.language as tl

from outrider.ops import dependent_launch as overlap
from outrider.ops.attention.decode_triton import LOG2_E
from outrider.ops.attention.latent_blocks_triton import add_history
from outrider.ops.attention.latent_decode_triton import LatentTiles, latent_tiles
from outrider.ops.attention.prefill_triton import find_tile, most_tiles
from outrider.ops.attention.splits_triton import EXACT, NOTHING_SEEN, dim_tile


@triton.jit(do_not_specialize=["pages", "bounds", "num_pages", "num_chunks"])
def _attend_kernel(
    query, layer, out, pages, bounds, query_stride, num_pages, num_chunks, scale,
    HEADS: tl.constexpr, LATENT: tl.constexpr, ROPE: tl.constexpr, LATENT_DIM: tl.constexpr,
    ROPE_DIM: tl.constexpr, PAGE_SIZE: tl.constexpr, CHUNKS: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    column, rope_channel = tl.arange(0, LATENT_DIM), tl.arange(0, ROPE_DIM)
    overlap.begin(PDL)
    flat = tl.num_programs(0) - 1 - tl.program_id(0)  # the longest tiles start first
    chunk, tile = find_tile(flat, bounds, num_chunks, HEADS, CHUNKS, BLOCK_M)
    if chunk < num_chunks:
        place = tile * BLOCK_M + tl.arange(0, BLOCK_M)
        offset, head = place // HEADS, place % HEADS
        start = tl.load(bounds + chunk)
        first = tl.load(bounds + num_chunks + chunk)
        count = tl.load(bounds + 2 * num_chunks + chunk)
        token = (first + offset).to(tl.int64)
        is_real = (offset < count)[:, None]
        wanted = is_real & (column < LATENT)[None, :]
        source = query + token[:, None] * query_stride + head[:, None] * (LATENT + ROPE)
        latent_query = tl.load(source + column[None, :], mask=wanted, other=0.0)
        rope_query = tl.load(
            source + LATENT + rope_channel[None, :],
            mask=is_real & (rope_channel < ROPE)[None, :],
            other=0.0,
        )
        own, own_pages = start + offset, pages + chunk.to(tl.int64) * num_pages
        last = tl.minimum((tile * BLOCK_M + BLOCK_M - 1) // HEADS, count - 1)
        # A padding chunk may be longer than any text of the step.
        end = tl.minimum(start + last + 1, num_pages * PAGE_SIZE)
        running_max = tl.full([BLOCK_M], NOTHING_SEEN, tl.float32)
        sums = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        acc = tl.zeros([BLOCK_M, LATENT_DIM], tl.float32)
        running_max, sums, acc = add_history(
            running_max, sums, acc, latent_query, rope_query, layer, own_pages, own + 1,
            start + tile * BLOCK_M // HEADS + 1, 0, end, scale,
            LATENT, ROPE, LATENT_DIM, ROPE_DIM, PAGE_SIZE, BLOCK_N, STAGES,
        )  # fmt: skip
        acc = acc * tl.div_rn(tl.full([BLOCK_M], 1.0, tl.float32), tl.sum(sums, 1))[:, None]
        target = out + (token * HEADS + head)[:, None] * LATENT + column[None, :]
        tl.store(target, acc.to(out.dtype.element_ty), mask=wanted)


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
    """Causal attention of all chunk tokens. The launch depends on their total only."""
    heads, channels = query.shape[1:]
    latent, page_size = out.shape[2], layer.shape[1]
    tiles = tiles or latent_tiles(heads, latent, query.dtype)
    assert query.stride()[1:] == (channels, 1), "the heads of a token lie side by side"
    num_chunks = bounds.shape[1]
    num_tiles = most_tiles(query.shape[0] * heads, num_chunks, tiles.rows)
    kernel: Any = _attend_kernel[(num_tiles,)]
    kernel(
        query, layer, out, pages, bounds,
        query.stride(0), pages.shape[1], num_chunks, scale * LOG2_E,
        HEADS=heads, LATENT=latent, ROPE=channels - latent,
        LATENT_DIM=dim_tile(latent), ROPE_DIM=dim_tile(channels - latent), PAGE_SIZE=page_size,
        CHUNKS=triton.next_power_of_2(num_chunks),
        BLOCK_M=tiles.rows, BLOCK_N=tiles.keys, STAGES=tiles.num_stages, PDL=overlap.is_on(query),
        num_warps=tiles.num_warps, num_stages=tiles.num_stages, **EXACT, **overlap.options(query),
    )  # fmt: skip
