"""KV in 8 bits: keys and values as floats of one byte, e4m3 or e5m2.

A key or a value is rounded to the nearest code when it is stored, and saturates. NaN stays NaN: see
`write_kv.py`. Attention widens codes to the type of its queries and sums in float32, so a sum over
many keys is as precise as one over a cache that is not narrow.
"""

from functools import cache

import torch

LARGEST = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}


def is_narrow(layer: torch.Tensor) -> bool:
    """Whether a pool holds codes."""
    return layer.dtype in LARGEST


def as_moved(stored: torch.Tensor) -> torch.Tensor:
    """The tensor as bytes, if it holds codes: torch does not index codes."""
    return stored.view(torch.uint8) if is_narrow(stored) else stored


def store_codes(
    layer: torch.Tensor,  # [pages, page_size, vectors, width] of codes
    slots: torch.Tensor,  # [num_query] int64
    vectors: torch.Tensor,  # [num_query, vectors, width] as a wider pool would hold them
) -> None:
    """Round the vectors of the query tokens to codes, and store these at their slots."""
    if layer.is_cuda:
        from outrider.ops.attention.kv_codes_triton import store_codes_triton

        store_codes_triton(layer, slots, vectors)
    else:
        store_codes_reference(layer, slots, vectors)


def store_codes_reference(layer: torch.Tensor, slots: torch.Tensor, vectors: torch.Tensor) -> None:
    largest = LARGEST[layer.dtype]
    codes = vectors.float().clamp(-largest, largest).to(layer.dtype)
    as_moved(layer).view(-1, *layer.shape[2:]).index_copy_(0, slots, as_moved(codes))


@cache
def code_values(dtype: torch.dtype) -> torch.Tensor:  # [256] float32
    """The number that each code stands for."""
    return torch.arange(256).to(torch.uint8).view(dtype).float()
