"""Selects the compressed entries whose keys score best with a query token."""

import torch

from outrider.ops.linear.fixed_product import fixed_product
from outrider.ops.sparse.listed_entries import ListedEntries


def select_entries(
    query: torch.Tensor,  # [num_query, heads, width]
    weights: torch.Tensor,  # [num_query, heads]
    keys: ListedEntries,
    scale: float,
    top_k: int,
) -> torch.Tensor:  # [num_query, at most top_k] int64 slots
    """The entries whose keys score best with every query token; of equal scores the older entry.

    The order is any. Past a query token's count there are arbitrary slots of the pool.
    """
    if query.is_cuda:
        from outrider.ops.sparse.indexer_triton import select_entries_triton

        return select_entries_triton(query, weights, keys, scale, top_k)
    return select_entries_reference(query, weights, keys, scale, top_k)


def select_entries_reference(
    query: torch.Tensor, weights: torch.Tensor, keys: ListedEntries, scale: float, top_k: int
) -> torch.Tensor:
    """The same in torch; the best come first."""
    scores = index_scores(query, weights, keys, scale)
    best = scores.sort(dim=1, descending=True, stable=True).indices[:, :top_k]
    return keys.slots.gather(1, best)


def index_scores(
    query: torch.Tensor, weights: torch.Tensor, keys: ListedEntries, scale: float
) -> torch.Tensor:  # [num_query, longest] float32; -inf past a query token's count
    """The score of every entry with every query token: a weighted sum over heads."""
    key = keys.pool[keys.slots].float()  # [num_query, longest, width]
    match = fixed_product(key, query.float().transpose(1, 2)).relu_()  # [num_query, longest, heads]
    scores = fixed_product(match, (weights.float() * scale)[..., None]).squeeze(2)
    place = torch.arange(keys.longest, device=scores.device)
    return scores.masked_fill(place >= keys.counts[:, None], float("-inf"))
