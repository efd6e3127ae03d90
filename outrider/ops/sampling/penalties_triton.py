"""Penalties of tokens already seen, as in `penalties.py`, in one pass and with the same bits."""
# Triton reads kernels as source; it has no types for them.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from typing import Any

import torch
import triton
import triton.language as tl

from outrider.ops import dependent_launch as overlap
from outrider.ops.sampling.sampling_columns import PenaltyTables

_BLOCK = 1024
# Slices of larger tensors: their alignment does not compile the kernel again.
_ANYWHERE = ["repetitions", "presences", "frequencies", "rows", "path"]


@triton.jit(do_not_specialize=["depth"], do_not_specialize_on_alignment=_ANYWHERE)
def _penalise_kernel(
    logits,
    output_counts,
    prompt_seen,
    repetitions,
    presences,
    frequencies,
    rows,
    path,
    scores,
    width,
    stride,
    table_stride,
    depth,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    place = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    overlap.begin(PDL)
    row = tl.load(rows + place)
    z = tl.load(logits + place * stride + columns, mask=inside, other=0.0).to(tl.float32)
    counts = tl.load(output_counts + row * width + columns, mask=inside, other=0)
    in_prompt = tl.load(prompt_seen + row * width + columns, mask=inside, other=0)
    for node in range(depth):
        counts += (columns == tl.load(path + place * depth + node)).to(tl.int32)
    is_emitted = counts > 0
    repetition = tl.load(repetitions + row * table_stride)
    repetition = tl.where((in_prompt != 0) | is_emitted, repetition, 1.0)
    z = tl.where(z > 0, tl.div_rn(z, repetition), z * repetition)
    z -= is_emitted.to(tl.float32) * tl.load(presences + row * table_stride)
    z -= counts.to(tl.float32) * tl.load(frequencies + row * table_stride)
    tl.store(scores + place * width + columns, z, mask=inside)


def penalise_triton(
    logits: torch.Tensor,  # [n, vocab] float32, bfloat16 or float16, unit stride along vocab
    tables: PenaltyTables,
    rows: torch.Tensor,  # [n] int64
    path: torch.Tensor,  # [n, depth] int64 tokens not yet recorded, padded with -1
) -> torch.Tensor:  # [n, vocab] float32
    """`penalise` in one launch."""
    num_rows, vocab = logits.shape
    path = path.contiguous()
    scores = torch.empty((num_rows, vocab), dtype=torch.float32, device=logits.device)
    if not num_rows:
        return scores
    kernel: Any = _penalise_kernel[(num_rows, triton.cdiv(vocab, _BLOCK))]
    kernel(
        logits,
        tables.output_counts,
        tables.prompt_seen.view(torch.uint8),
        tables.repetition,
        tables.presence,
        tables.frequency,
        rows,
        path,
        scores,
        vocab,
        logits.stride(0),
        tables.repetition.stride(0),
        path.shape[1],
        BLOCK=_BLOCK,
        enable_fp_fusion=False,
        PDL=overlap.is_on(logits),
        **overlap.options(logits),
    )
    return scores
