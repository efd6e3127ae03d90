"""The most likely tokens of draft logits and their log-probabilities, as in `top_tokens.py`.

A program reduces one block of a row to its best tokens and its sum of exponentials, a second kernel
merges the blocks. Blocks do not depend on the batch, so neither does a log-probability.
"""
# Triton reads kernels as source; it has no types for them.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from typing import Any

import torch
import triton
import triton.language as tl

from outrider.ops import dependent_launch as overlap
from outrider.ops.sampling.gumbel_noise_triton import gumbel_of
from outrider.ops.sampling.sampling_columns import NoNoise, RowNoise
from outrider.ops.sampling.sortable_floats_triton import LOWEST_KEY, id_of, key_of, key_value
from outrider.ops.sampling.top_tokens import TopTokens

_BLOCK = 1024
# Slices of larger tensors: their alignment does not compile the kernel again.
_ANYWHERE = ["seeds", "temperatures", "rows", "positions"]


@triton.jit(do_not_specialize_on_alignment=_ANYWHERE)
def _blocks_kernel(
    logits,
    target_ids,
    seeds,
    temperatures,
    rows,
    positions,
    seed_stride,
    temperature_stride,
    keys,
    sums,
    width,
    stride,
    IS_NOISY: tl.constexpr,
    TOPK: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    place = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    columns = block * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    overlap.begin(PDL)
    z = tl.load(logits + place * stride + columns, mask=inside, other=float("-inf")).to(tl.float32)
    if IS_NOISY:
        row = tl.load(rows + place)
        seed = tl.load(seeds + row * seed_stride)
        temperature = tl.load(temperatures + row * temperature_stride)
        ids = tl.load(target_ids + columns, mask=inside, other=0)
        z += gumbel_of(ids, seed, tl.load(positions + place)) * temperature
        z = tl.div_rn(z, tl.where(temperature > 0, temperature, 1.0))
    key = key_of(z, columns)
    first = place * tl.num_programs(1) + block
    top = tl.max(key, 0)
    best = key_value(top)
    # A block in which all scores are minus infinity adds nothing.
    powers = tl.where(z > float("-inf"), tl.exp(z - best), 0.0)
    tl.store(sums + first, tl.sum(powers, 0))
    tl.store(keys + first * TOPK, top)
    for rank in range(1, TOPK):
        key = tl.where(key == top, LOWEST_KEY, key)
        top = tl.max(key, 0)
        tl.store(keys + first * TOPK + rank, top)


@triton.jit
def _merge_kernel(
    keys,
    sums,
    target_ids,
    logprobs,
    tokens,
    num_blocks,
    TOPK: tl.constexpr,
    BLOCKS: tl.constexpr,
    KEYS: tl.constexpr,
    PDL: tl.constexpr,
):
    place = tl.program_id(0).to(tl.int64)
    blocks = tl.arange(0, BLOCKS)
    entries = tl.arange(0, KEYS)
    is_block = blocks < num_blocks
    overlap.begin(PDL)
    first = place * num_blocks
    key = tl.load(keys + first * TOPK + entries, mask=entries < num_blocks * TOPK, other=LOWEST_KEY)
    top = tl.max(key, 0)
    best = key_value(top)
    block_top = tl.load(keys + (first + blocks) * TOPK, mask=is_block, other=0)
    block_best = tl.where(is_block, key_value(block_top), float("-inf"))
    block_sum = tl.load(sums + first + blocks, mask=is_block, other=0.0)
    weights = tl.where(block_best > float("-inf"), tl.exp(block_best - best), 0.0)
    total = tl.log(tl.sum(block_sum * weights, 0))
    for rank in range(TOPK):
        tl.store(logprobs + place * TOPK + rank, (key_value(top) - best) - total)
        tl.store(tokens + place * TOPK + rank, tl.load(target_ids + id_of(top)))
        key = tl.where(key == top, LOWEST_KEY, key)
        top = tl.max(key, 0)


def top_tokens_triton(
    logits: torch.Tensor,  # [n, draft_vocab] float32, bfloat16 or float16, unit stride along vocab
    target_ids: torch.Tensor,  # [draft_vocab] int64
    topk: int,
    noise: RowNoise | NoNoise,
) -> TopTokens:
    """`top_tokens` in two launches; of equally likely tokens the lower index comes first."""
    num_rows, vocab = logits.shape
    num_blocks = triton.cdiv(vocab, _BLOCK)
    logprobs = torch.empty((num_rows, topk), dtype=torch.float32, device=logits.device)
    tokens = torch.empty((num_rows, topk), dtype=torch.int64, device=logits.device)
    if not num_rows:
        return TopTokens(logprobs=logprobs, tokens=tokens)
    keys = torch.empty((num_rows, num_blocks, topk), dtype=torch.int64, device=logits.device)
    sums = torch.empty((num_rows, num_blocks), dtype=torch.float32, device=logits.device)
    constants = {"TOPK": topk, "PDL": overlap.is_on(logits), **overlap.options(logits)}
    reduce: Any = _blocks_kernel[(num_rows, num_blocks)]
    reduce(
        logits,
        target_ids,
        *noise.arguments(),
        keys,
        sums,
        vocab,
        logits.stride(0),
        IS_NOISY=isinstance(noise, RowNoise),
        BLOCK=_BLOCK,
        enable_fp_fusion=False,
        **constants,
    )
    merge: Any = _merge_kernel[(num_rows,)]
    merge(
        keys,
        sums,
        target_ids,
        logprobs,
        tokens,
        num_blocks,
        BLOCKS=triton.next_power_of_2(num_blocks),
        KEYS=triton.next_power_of_2(num_blocks * topk),
        **constants,
    )
    return TopTokens(logprobs=logprobs, tokens=tokens)
