"""How a block of paged latents enters the running softmax of a tile, in Triton.

The order of things is the compiler's: comments say what keeps it from a worse one on sm_90. A look
at the generated code is due when they change (`scripts/gpu/time_latent.py` times it).
"""
# Triton reads kernels as source; it has no types for them.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl

from outrider.ops.attention.tree_paths_triton import path_slots


@triton.jit
def _history_slots(start, last, pages, PAGE_SIZE: tl.constexpr, BLOCK_N: tl.constexpr):
    """Where in the pool the latents of a block lie; past the last, the last's.

    That one is there, and nobody sees it again: the loads need no mask.
    """
    offset = tl.arange(0, BLOCK_N)
    if PAGE_SIZE % BLOCK_N == 0:  # one page holds them all
        at = tl.minimum(start, last).to(tl.uint32)
        first = tl.load(pages + at // PAGE_SIZE) * PAGE_SIZE + (at % PAGE_SIZE).to(tl.int32)
        return first + tl.minimum(offset, tl.maximum(last - start, 0))
    at = tl.minimum(start + offset, last).to(tl.uint32)  # whose division is a shift
    page = tl.load(pages + at // PAGE_SIZE)
    return page * PAGE_SIZE + (at % PAGE_SIZE).to(tl.int32)


@triton.jit
def _fetch(
    stored, slots, LATENT: tl.constexpr, ROPE: tl.constexpr, LATENT_DIM: tl.constexpr,
    ROPE_DIM: tl.constexpr,
):  # fmt: skip
    """A block of latents [keys, lanes] and of the rotated keys beside them."""
    channel, turn = tl.arange(0, LATENT_DIM), tl.arange(0, ROPE_DIM)
    source = stored + slots.to(tl.int64)[:, None] * (LATENT + ROPE)
    at, turned_at = source + channel[None, :], source + LATENT + turn[None, :]
    # Unmasked where it can be: the addresses of a block are much of the work that is no product.
    if LATENT == LATENT_DIM:
        latent = tl.load(at)
    else:
        latent = tl.load(at, mask=(channel < LATENT)[None, :], other=0.0)
    if ROPE == ROPE_DIM:
        turned = tl.load(turned_at)
    else:
        turned = tl.load(turned_at, mask=(turn < ROPE)[None, :], other=0.0)
    return latent, turned


@triton.jit
def _see(
    state_max, sums, acc, turned_score, latent_score, latent, is_visible, needs_mask, scale,
):  # fmt: skip
    """One block of latents enters the running softmax, which is in base 2."""
    # A plain addition would become a chain of two products, and a mask without a branch one of
    # all three: the compiler then gives the scores of a tile to every warp group once more.
    score = tl.fma(turned_score, 1.0, latent_score)
    if needs_mask:
        score = tl.where(is_visible, score, float("-inf"))
    new_max = tl.maximum(state_max, tl.max(score, 1) * scale)
    weight = tl.exp2(tl.fma(score, scale, -new_max[:, None]))
    kept = tl.exp2(state_max - new_max)
    sums = sums * kept[:, None] + weight
    acc = tl.dot(weight.to(latent.dtype), latent, acc * kept[:, None], input_precision="ieee")
    return new_max, sums, acc


@triton.jit
def see_history(
    state_max, sums, acc, latent_query, turned_query, stored, pages, limit, shortest, begin, end,
    scale,
    LATENT: tl.constexpr, ROPE: tl.constexpr, LATENT_DIM: tl.constexpr, ROPE_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr, BLOCK_N: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Latents in [begin, end) that lie at their own positions, the same for all lanes.

    A lane sees those below its limit; none has a limit below `shortest`.
    """
    last = tl.maximum(end - 1, 0)
    slots = _history_slots(begin, last, pages, PAGE_SIZE, BLOCK_N)
    turned_score, latent_score = tl.zeros_like(sums), tl.zeros_like(sums)
    for start in tl.range(begin, end, BLOCK_N, num_stages=STAGES):
        position = start + tl.arange(0, BLOCK_N)
        # Looked up one block ahead, so that the loads of latents wait for nobody.
        ahead = _history_slots(start + BLOCK_N, last, pages, PAGE_SIZE, BLOCK_N)
        latent, turned = _fetch(stored, slots, LATENT, ROPE, LATENT_DIM, ROPE_DIM)
        turned_score = tl.dot(turned_query, tl.trans(turned), input_precision="ieee")
        latent_score = tl.dot(latent_query, tl.trans(latent), input_precision="ieee")
        # Always so. What stands under a condition is scheduled after the loads of the next block,
        # which are then asked for during these products and under way during the next.
        if start < end:
            state_max, sums, acc = _see(
                state_max, sums, acc, turned_score, latent_score, latent,
                position[None, :] < limit[:, None], start + BLOCK_N > shortest, scale,
            )  # fmt: skip
        slots = ahead
    # Never so. Of products that nobody may need after the loop, each would be waited for at once.
    sums = tl.where(end < 0, turned_score + latent_score, sums)
    return state_max, sums, acc


@triton.jit
def see_paths(
    state_max, sums, acc, latent_query, turned_query, stored, pages, limits, tails, limit, node,
    nodes, length, begin, end, scale,
    LATENT: tl.constexpr, ROPE: tl.constexpr, LATENT_DIM: tl.constexpr, ROPE_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr, BLOCK_N: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Latents in [begin, end) along the path of each node of the tile, seen by that node alone."""
    first, last = tl.min(node, 0), tl.minimum(tl.max(node, 0), nodes - 1)
    blocks = tl.cdiv(tl.maximum(end - begin, 0), BLOCK_N)
    divisor, steps = tl.maximum(blocks, 1), (last - first + 1) * blocks
    anywhere = tl.load(pages).to(tl.int64) * PAGE_SIZE  # a text begins there
    for step in tl.range(0, steps, num_stages=STAGES):
        slots = path_slots(
            step, divisor, first, begin, end, length, limits, tails, pages, PAGE_SIZE, BLOCK_N
        )  # fmt: skip
        slots = tl.where(slots >= 0, slots, anywhere)
        position = begin + step % divisor * BLOCK_N + tl.arange(0, BLOCK_N)
        is_own = node == first + step // divisor
        latent, turned = _fetch(stored, slots, LATENT, ROPE, LATENT_DIM, ROPE_DIM)
        latent_key, turned_key = tl.trans(latent), tl.trans(turned)
        if step < steps:  # as above
            turned_score = tl.dot(turned_query, turned_key, input_precision="ieee")
            latent_score = tl.dot(latent_query, latent_key, input_precision="ieee")
            is_visible = (position[None, :] < limit[:, None]) & is_own[:, None]
            state_max, sums, acc = _see(
                state_max, sums, acc, turned_score, latent_score, latent, is_visible, step >= 0,
                scale,
            )  # fmt: skip
    return state_max, sums, acc
