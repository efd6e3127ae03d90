"""Attention of draft blocks over packed sequences: a slot reads its row's context and its block."""

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F

from outrider.train.packed_attention import AttentionKind, compiled_flex


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockPlaces:
    """Where the blocks of a batch begin: after row `starts` of their sequences."""

    documents: torch.Tensor  # [batch, length] number within the sequence
    starts: torch.Tensor  # [batch, anchors] last row of the context
    size: int  # slots of a block
    is_causal: bool  # a slot reads no later slots


class BlockAttention(Protocol):
    """Queries are [batch, heads, anchors * size, head_dim]; keys and values have the length of the
    sequences before the slots.
    """

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor: ...


class DenseBlockAttention:
    """Computes all scores at once: the reference, used on CPUs."""

    def __init__(self, places: BlockPlaces) -> None:
        (_, length), (batch, anchors) = places.documents.shape, places.starts.shape
        num_query, device = anchors * places.size, places.starts.device
        query = torch.arange(num_query, device=device)[:, None]
        key = torch.arange(length + num_query, device=device)
        row = torch.arange(batch, device=device)[:, None, None]
        self._mask = _is_seen(places, row, query, key)[:, None]  # [batch, 1, queries, keys]

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=self._mask)


class FlexBlockAttention:
    """Compiled flex attention, used on GPUs. Skips parts of the scores that are masked entirely."""

    def __init__(self, places: BlockPlaces) -> None:
        from torch.nn.attention.flex_attention import create_block_mask

        def is_seen(
            row: torch.Tensor, _head: torch.Tensor, query: torch.Tensor, key: torch.Tensor
        ) -> torch.Tensor:
            return _is_seen(places, row, query, key)

        (batch, length), num_query = (
            places.documents.shape,
            places.starts.shape[1] * places.size,
        )
        self._mask = create_block_mask(
            is_seen, batch, None, num_query, length + num_query, device=places.starts.device
        )

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = compiled_flex()(query, key, value, block_mask=self._mask)
        return result


def make_block_attention(kind: AttentionKind, places: BlockPlaces) -> BlockAttention:
    return FlexBlockAttention(places) if kind == "flex" else DenseBlockAttention(places)


def _is_seen(
    places: BlockPlaces, row: torch.Tensor, query: torch.Tensor, key: torch.Tensor
) -> torch.Tensor:
    """Whether a slot reads a key: a row of its document before the block, or a slot of the block.

    All arguments broadcast. Keys from `length` on are slots.
    """
    documents, length, size = places.documents, places.documents.shape[1], places.size
    start = places.starts[row, query // size]
    context = key.clamp_max(length - 1)
    is_context = (key <= start) & (documents[row, context] == documents[row, start])
    slot = key - length
    # Floor division of negative numbers never equals the number of a block.
    is_own = slot.div(size, rounding_mode="floor") == query // size
    if places.is_causal:
        is_own = is_own & (slot <= query)
    return torch.where(key < length, is_context, is_own)
