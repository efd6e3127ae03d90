"""The write of keys and values, or of latents, to their slots.

Attention reads the keys of draft nodes and positions that a query does not see, and selects by the
score: `where(is_seen, score, -inf)`. But it multiplies their values by a weight of 0, and 0 * NaN
is NaN. So a pool stores numbers that are not finite in keys only:

    a key that is not finite is stored as NaN       a query that sees it gets NaN
    a value that is not finite is stored as zero,   a query that does not see it gets no NaN
      and the same channel of its key as NaN        and one that sees it does

The kernel of `qkv_projection_triton.py` computes keys and values in different programs. It marks
the hidden state of the token instead of the key. It runs steps without prompts, in which a token is
sampled from every hidden state, so the mark is seen.
"""

import math

import torch


def write_kv(
    layer: torch.Tensor,  # [pages, page_size, vectors, width]
    slots: torch.Tensor,  # [num_query]
    kv: torch.Tensor,  # [num_query, vectors, width] keys, then values; overwritten
) -> None:
    """Store the vectors of the query tokens at their slots."""
    _make_infinite_nan_(kv)
    keys, values = kv.chunk(2, dim=1)
    keys.add_(values, alpha=0)  # NaN where the value is
    values.nan_to_num_()
    _copy_to(layer, slots, kv)


def write_latents(
    layer: torch.Tensor,  # [pages, page_size, 1, latent + rope]
    slots: torch.Tensor,  # [num_query]
    latents: torch.Tensor,  # [num_query, latent + rope] overwritten
    latent: int,
) -> None:
    """Store latents and the keys beside them. A latent is key and value, so where it is not finite
    it is stored as zeros, and the key beside it, which only enters scores, as NaN.
    """
    _make_infinite_nan_(latents)
    is_bad = latents[:, :latent].isnan().any(1, keepdim=True)  # [num_query, 1]
    latents[:, :latent].masked_fill_(is_bad, 0.0)
    latents[:, latent:].masked_fill_(is_bad, math.nan)
    _copy_to(layer, slots, latents[:, None])


def _make_infinite_nan_(x: torch.Tensor) -> None:
    """Adds x * x * 0, which is 0 or NaN: one pass, where a mask takes three."""
    x.addcmul_(x, x, value=0)


def _copy_to(layer: torch.Tensor, slots: torch.Tensor, vectors: torch.Tensor) -> None:
    layer.view(-1, layer.shape[2], layer.shape[3]).index_copy_(0, slots, vectors)
