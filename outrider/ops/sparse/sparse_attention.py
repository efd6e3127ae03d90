"""Attention over a sliding window and compressed entries, with a sink per head."""

import torch

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
    logits = torch.einsum("nhw,nkw->nhk", query.float(), vectors) * scale
    logits = logits.masked_fill_(~is_seen[:, None], float("-inf"))
    sink = sinks[None, :, None].expand(query.shape[0], -1, 1)
    shares = torch.cat([logits, sink], dim=2).softmax(2)[:, :, :-1]
    return torch.einsum("nhk,nkw->nhw", shares, vectors).to(query.dtype)
