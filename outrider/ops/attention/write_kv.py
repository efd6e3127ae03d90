"""The write of keys and values, or of latents, to their slots."""

import torch


def write_kv(
    layer: torch.Tensor,  # [pages, page_size, vectors, width]
    slots: torch.Tensor,  # [num_query]
    kv: torch.Tensor,  # [num_query, vectors, width]
) -> None:
    """Store the vectors of the query tokens at their slots."""
    layer.view(-1, layer.shape[2], layer.shape[3]).index_copy_(0, slots, kv)
