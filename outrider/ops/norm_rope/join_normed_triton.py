"""Norms of embeddings and hidden states side by side: the kernel of `join_normed_reference`."""
# Triton reads kernels as source; it has no types for them.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from typing import Any

import torch
import triton
import triton.language as tl

from outrider.ops import dependent_launch as overlap
from outrider.ops.norm_rope.rms_norm import Norm
from outrider.ops.norm_rope.rms_norm_triton import norm_tile, scaled


@triton.jit(do_not_specialize_on_alignment=["tokens"])  # any view of a plan
def _join_kernel(
    tokens,
    embedding,
    hidden_states,
    embedding_weight,
    hidden_weight,
    joined,
    normed_hidden,
    embedding_stride,
    hidden_stride,
    dim,
    embedding_eps,
    hidden_eps,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < dim
    left = joined + row * 2 * dim
    if tl.program_id(1) == 0:
        scales = tl.load(embedding_weight + columns, mask=inside, other=0.0)
        overlap.begin(PDL)
        token = tl.load(tokens + row).to(tl.int64)
        source = embedding + token * embedding_stride
        values = tl.load(source + columns, mask=inside, other=0.0).to(tl.float32)
        normed = scaled(values, tl.sum(values * values) / dim, scales, embedding_eps)
        tl.store(left + columns, normed, mask=inside)
    else:
        scales = tl.load(hidden_weight + columns, mask=inside, other=0.0)
        overlap.begin(PDL)
        source = hidden_states + row * hidden_stride
        values = tl.load(source + columns, mask=inside, other=0.0).to(tl.float32)
        normed = scaled(values, tl.sum(values * values) / dim, scales, hidden_eps)
        tl.store(left + dim + columns, normed, mask=inside)
        tl.store(normed_hidden + row * dim + columns, normed, mask=inside)


def join_normed_triton(
    tokens: torch.Tensor,  # [n] int64
    embedding: torch.Tensor,  # [vocab, dim]
    hidden_states: torch.Tensor,  # [n, dim]
    *,
    embedding_norm: Norm,  # weight [dim]
    hidden_norm: Norm,  # weight [dim]
) -> tuple[torch.Tensor, torch.Tensor]:  # [n, 2 * dim], [n, dim]
    """Normalised embeddings left of normalised hidden states; and the latter alone."""
    num_rows, dim = hidden_states.shape
    assert embedding.shape[1] == dim
    assert hidden_states.stride(1) == embedding.stride(1) == 1
    joined = torch.empty(
        (num_rows, 2 * dim), dtype=hidden_states.dtype, device=hidden_states.device
    )
    normed_hidden = torch.empty(
        (num_rows, dim), dtype=hidden_states.dtype, device=hidden_states.device
    )
    kernel: Any = _join_kernel[(num_rows, 2)]
    kernel(
        tokens,
        embedding,
        hidden_states,
        embedding_norm.weight,
        hidden_norm.weight,
        joined,
        normed_hidden,
        embedding.stride(0),
        hidden_states.stride(0),
        dim,
        embedding_norm.eps,
        hidden_norm.eps,
        PDL=overlap.is_on(hidden_states),
        **norm_tile(dim),
        **overlap.options(hidden_states),
    )
    return joined, normed_hidden
