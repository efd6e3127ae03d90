"""Attention over a sliding window and compressed entries, with a sink per head."""

import torch

from outrider.ops.compiled.block_kind import TILE
from outrider.ops.linear.fixed_product import fixed_product
from outrider.ops.sparse.compressed_index import CompressedIndex
from outrider.ops.sparse.listed_entries import ListedEntries
from outrider.ops.sparse.ring_tokens import RingTokens


def sparse_attention(
    query: torch.Tensor,  # [num_query, heads, width]
    window: RingTokens,
    index: CompressedIndex,
    entries: ListedEntries,
    sinks: torch.Tensor,  # [heads] float32 a logit per head, with a value of zero
    scale: float,
) -> torch.Tensor:  # [num_query, heads, width]
    """One softmax over window, entries and sink. A vector is its own key and value."""
    if query.is_cuda:
        from outrider.ops.sparse.sparse_attention_triton import sparse_attention_triton

        return sparse_attention_triton(query, window, index, entries, sinks, scale)
    return sparse_attention_reference(query, window, index, entries, sinks, scale)


def sparse_attention_reference(
    query: torch.Tensor,
    window: RingTokens,
    index: CompressedIndex,
    entries: ListedEntries,
    sinks: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """The same in torch."""
    sources = index.window.ring.sources
    place = torch.arange(entries.longest, device=query.device)
    is_seen = torch.cat([sources >= 0, place < entries.counts[:, None]], dim=1)
    vectors = torch.cat([window.read(sources), entries.pool[entries.slots]], dim=1).float()
    vectors.masked_fill_(~is_seen[..., None], 0.0)  # places that are not seen can hold NaN
    # Sums are over places in their order, and a place that is not seen adds zero. So the number of
    # places behind those that a query token sees does not matter.
    logits = fixed_product(vectors, query.float().transpose(1, 2)) * scale  # [n, places, heads]
    logits.masked_fill_(~is_seen[..., None], float("-inf"))
    best = torch.maximum(logits.amax(1), sinks)  # [n, heads]
    shares = (logits - best[:, None]).exp_().transpose(1, 2).contiguous()  # [n, heads, places]
    ones = shares.new_ones(TILE).expand(*vectors.shape[:2], TILE)
    total = fixed_product(shares, ones)[..., 0] + (sinks - best).exp_()
    return (fixed_product(shares, vectors) / total[..., None]).to(query.dtype)
