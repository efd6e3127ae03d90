"""The running softmax of a tile over blocks of paged latents, in Triton.

The compiler orders the instructions. Comments say how a slower order on sm_90 is avoided. Look
at the generated code when you change these lines (`benchmarks/kernels/time_latent.py` times it).
"""
# Triton reads kernels as source; it has no types for them.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl

from outrider.ops.attention.tree_paths_triton import path_slots


@triton.jit
def _history_slots(start, last, pages, PAGE_SIZE: tl.constexpr, BLOCK_N: tl.constexpr):
    """The slots of a block of latents; past the last latent, the slot of the last.

    That slot is valid and its scores are masked later, so the loads need no mask.
    """
    offset = tl.arange(0, BLOCK_N)
    if PAGE_SIZE % BLOCK_N == 0:  # one page holds them all
        at = tl.minimum(start, last).to(tl.uint32)
        first = tl.load(pages + at // PAGE_SIZE) * PAGE_SIZE + (at % PAGE_SIZE).to(tl.int32)
        return first + tl.minimum(offset, tl.maximum(last - start, 0))
    at = tl.minimum(start + offset, last).to(tl.uint32)  # unsigned: the division is a shift
    page = tl.load(pages + at // PAGE_SIZE)
    return page * PAGE_SIZE + (at % PAGE_SIZE).to(tl.int32)


@triton.jit
def _fetch(
    stored, slots, LATENT: tl.constexpr, ROPE: tl.constexpr, LATENT_DIM: tl.constexpr,
    ROPE_DIM: tl.constexpr,
):  # fmt: skip
    """A block of latents [keys, channels] and of the rotated keys beside them."""
    channel, rope_channel = tl.arange(0, LATENT_DIM), tl.arange(0, ROPE_DIM)
    source = stored + slots.to(tl.int64)[:, None] * (LATENT + ROPE)
    at, rope_at = source + channel[None, :], source + LATENT + rope_channel[None, :]
    # Without a mask where possible: addresses are much of the work besides products.
    if LATENT == LATENT_DIM:
        latent = tl.load(at)
    else:
        latent = tl.load(at, mask=(channel < LATENT)[None, :], other=0.0)
    if ROPE == ROPE_DIM:
        rope = tl.load(rope_at)
    else:
        rope = tl.load(rope_at, mask=(rope_channel < ROPE)[None, :], other=0.0)
    return latent, rope


@triton.jit
def _add_block(
    running_max, sums, acc, rope_score, latent_score, latent, is_visible, needs_mask, scale,
):  # fmt: skip
    """Add one block of latents to the running softmax, which is in base 2."""
    # With a plain addition the compiler would chain two products, and with a mask but no branch all
    # three. It would then compute the scores of a tile once per warp group.
    score = tl.fma(rope_score, 1.0, latent_score)
    if needs_mask:
        score = tl.where(is_visible, score, float("-inf"))
    new_max = tl.maximum(running_max, tl.max(score, 1) * scale)
    weight = tl.exp2(tl.fma(score, scale, -new_max[:, None]))
    rescale = tl.exp2(running_max - new_max)
    sums = sums * rescale[:, None] + weight
    acc = tl.dot(weight.to(latent.dtype), latent, acc * rescale[:, None], input_precision="ieee")
    return new_max, sums, acc


@triton.jit
def add_history(
    running_max, sums, acc, latent_query, rope_query, stored, pages, limit, shortest, begin, end,
    scale,
    LATENT: tl.constexpr, ROPE: tl.constexpr, LATENT_DIM: tl.constexpr, ROPE_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr, BLOCK_N: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Add latents in [begin, end) that lie at their own positions, the same for all tile rows.

    A tile row sees positions below its limit; no limit is below `shortest`.
    """
    last = tl.maximum(end - 1, 0)
    slots = _history_slots(begin, last, pages, PAGE_SIZE, BLOCK_N)
    rope_score, latent_score = tl.zeros_like(sums), tl.zeros_like(sums)
    for start in tl.range(begin, end, BLOCK_N, num_stages=STAGES):
        position = start + tl.arange(0, BLOCK_N)
        # Slots are looked up one block ahead, so that loads of latents need not wait for them.
        ahead = _history_slots(start + BLOCK_N, last, pages, PAGE_SIZE, BLOCK_N)
        latent, rope = _fetch(stored, slots, LATENT, ROPE, LATENT_DIM, ROPE_DIM)
        rope_score = tl.dot(rope_query, tl.trans(rope), input_precision="ieee")
        latent_score = tl.dot(latent_query, tl.trans(latent), input_precision="ieee")
        # Always true. The compiler schedules conditional code after the loads of the next block, so
        # these loads are issued during the products above and run during the next ones.
        if start < end:
            running_max, sums, acc = _add_block(
                running_max, sums, acc, rope_score, latent_score, latent,
                position[None, :] < limit[:, None], start + BLOCK_N > shortest, scale,
            )  # fmt: skip
        slots = ahead
    # Never true. If scores were unused after the loop, the compiler would wait for each product.
    sums = tl.where(end < 0, rope_score + latent_score, sums)
    return running_max, sums, acc


@triton.jit
def add_paths(
    running_max, sums, acc, latent_query, rope_query, stored, pages, limits, tails, limit, node,
    nodes, length, begin, end, scale,
    LATENT: tl.constexpr, ROPE: tl.constexpr, LATENT_DIM: tl.constexpr, ROPE_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr, BLOCK_N: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Add latents in [begin, end) along the path of each node of the tile, to that node only."""
    first, last = tl.min(node, 0), tl.minimum(tl.max(node, 0), nodes - 1)
    blocks = tl.cdiv(tl.maximum(end - begin, 0), BLOCK_N)
    divisor, steps = tl.maximum(blocks, 1), (last - first + 1) * blocks
    any_slot = tl.load(pages).to(tl.int64) * PAGE_SIZE  # valid: the first slot of the text
    for step in tl.range(0, steps, num_stages=STAGES):
        slots = path_slots(
            step, divisor, first, begin, end, length, limits, tails, pages, PAGE_SIZE, BLOCK_N
        )  # fmt: skip
        slots = tl.where(slots >= 0, slots, any_slot)
        position = begin + step % divisor * BLOCK_N + tl.arange(0, BLOCK_N)
        is_own = node == first + step // divisor
        latent, rope = _fetch(stored, slots, LATENT, ROPE, LATENT_DIM, ROPE_DIM)
        latent_key, rope_key = tl.trans(latent), tl.trans(rope)
        if step < steps:  # always true, as above
            rope_score = tl.dot(rope_query, rope_key, input_precision="ieee")
            latent_score = tl.dot(latent_query, latent_key, input_precision="ieee")
            is_visible = (position[None, :] < limit[:, None]) & is_own[:, None]
            running_max, sums, acc = _add_block(
                running_max, sums, acc, rope_score, latent_score, latent, is_visible, step >= 0,
                scale,
            )  # fmt: skip
    return running_max, sums, acc
