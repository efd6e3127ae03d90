"""Paged KV storage on the device. Page 0 belongs to nobody: padding writes there, nobody reads."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class KVLayout:
    """Sizes of one layer's cache. Keys and values of a token lie side by side."""

    layers: int
    kv_heads: int
    head_dim: int
    page_size: int
    dtype: torch.dtype

    @property
    def page_bytes(self) -> int:
        """Bytes of one page over all layers."""
        token = 2 * self.kv_heads * self.head_dim * self.dtype.itemsize
        return self.layers * self.page_size * token


class KVPool:
    """Owns the pages of all layers: `layers[i]` is [pages, page_size, 2 * kv_heads, head_dim]."""

    def __init__(self, layout: KVLayout, *, num_pages: int, device: torch.device) -> None:
        self.layout = layout
        self.num_pages = num_pages  # page 0 included
        shape = (num_pages, layout.page_size, 2 * layout.kv_heads, layout.head_dim)
        # Zeros, not empty: a masked key is multiplied by a zero weight, and 0 * NaN is NaN.
        self.layers = tuple(
            torch.zeros(shape, dtype=layout.dtype, device=device) for _ in range(layout.layers)
        )


def write_kv(
    layer: torch.Tensor,  # [pages, page_size, 2 * kv_heads, head_dim]
    slots: torch.Tensor,  # [num_query]
    kv: torch.Tensor,  # [num_query, 2 * kv_heads, head_dim] keys, then values
) -> None:
    """Store the keys and values of the query tokens at their slots."""
    layer.view(-1, layer.shape[2], layer.shape[3]).index_copy_(0, slots, kv)
