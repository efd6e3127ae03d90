"""Attention in plain torch, for any device: gather the pages of a row, mask, softmax.

The mask is built once per step, not per layer. This is the backend that others are tested against.

The mask is added to the scores, and weights of 0 are multiplied with values. So a masked key that
is not finite would reach the result: it is then computed again without such keys.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F

from outrider.config.draft_config import MAX_NODES
from outrider.config.settings import MAX_PAGE
from outrider.kv.bad_keys import AttendStored, recompute_without_bad_keys
from outrider.ops.tree.plan_rows import chunk_offsets
from outrider.step.arena import Arena
from outrider.step.attention_backend import AttentionScope, Capabilities
from outrider.step.graph_break import graph_break
from outrider.step.plan import AttentionPlan
from outrider.step.shape import StepShape

_ANY = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedRows:
    """Rows with the same number of query places, and which keys each place may read."""

    pages: torch.Tensor  # [rows * pages] int64, the pages of each row in order
    mask: torch.Tensor  # [rows, 1, width, pages * page_size] added to the scores: 0 or -inf


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferencePlan(AttentionPlan):
    """Decode rows in place; chunks are copied to a rectangle of [rows, width] places and back."""

    shape: StepShape
    decode: MaskedRows
    chunk: MaskedRows
    places: torch.Tensor  # [chunk.tokens] int64 place of each chunk token in the rectangle


Attend = Callable[[torch.Tensor, MaskedRows], torch.Tensor]  # from queries to what they read


class ReferenceAttention:
    """Reads the first `shape.pages` pages of a row's page table; masks keys of other rows."""

    def __init__(self, *, page_size: int, dtype: torch.dtype) -> None:
        self._page_size = page_size
        self._dtype = dtype

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            max_nodes=MAX_NODES,
            chain_only=False,
            page_sizes=range(1, MAX_PAGE + 1),
            max_head_dim=_ANY,
            max_group=_ANY,
            max_latent=_ANY,
            needs_host_lengths=False,
        )

    def reserve(self, arena: Arena, largest: StepShape) -> None:
        keys = largest.pages * self._page_size
        chunk = largest.chunk
        arena.reserve("attention.decode.pages", largest.rows * largest.pages, torch.int64)
        arena.reserve("attention.decode.mask", largest.num_decode_query * keys, self._dtype)
        arena.reserve("attention.chunk.pages", chunk.rows * largest.pages, torch.int64)
        # Chunks of one step share its token budget; `width * rows` can exceed it when they differ.
        arena.reserve("attention.chunk.mask", chunk.rows * chunk.width * keys, self._dtype)
        arena.reserve("attention.chunk.places", chunk.tokens, torch.int64)

    def bind(self, arena: Arena, shape: StepShape) -> ReferencePlan:
        return ReferencePlan(
            shape=shape,
            decode=self._bind_rows(arena, "decode", shape.rows, shape.nodes, shape.pages),
            chunk=self._bind_rows(arena, "chunk", shape.chunk.rows, shape.chunk.width, shape.pages),
            places=arena.view("attention.chunk.places", shape.chunk.tokens),
        )

    def fill(self, plan: AttentionPlan, scope: AttentionScope) -> None:
        assert isinstance(plan, ReferencePlan)
        if plan.shape.rows:
            self._fill_decode(plan.decode, scope)
        if plan.shape.chunk.rows:
            self._fill_chunk(plan, scope)

    def run(
        self,
        query: torch.Tensor,  # [num_query, heads, head_dim]
        layer: torch.Tensor,  # [pages, page_size, 2 * kv_heads, head_dim]
        plan: AttentionPlan,
        scale: float,
    ) -> torch.Tensor:  # [num_query, heads, head_dim]
        assert isinstance(plan, ReferencePlan)
        attend = partial(_attend, layer=layer, attend=partial(_attend_heads, scale=scale))
        return self._run(query, plan, attend)

    def run_latent(
        self,
        query: torch.Tensor,  # [num_query, heads, width]
        layer: torch.Tensor,  # [pages, page_size, 1, width]
        plan: AttentionPlan,
        scale: float,
        latent: int,
    ) -> torch.Tensor:  # [num_query, heads, latent]
        assert isinstance(plan, ReferencePlan)
        of_stored = partial(_attend_latents, scale=scale, latent=latent)
        return self._run(query, plan, partial(_attend, layer=layer, attend=of_stored))

    def _run(self, query: torch.Tensor, plan: ReferencePlan, attend: Attend) -> torch.Tensor:
        shape, num_decode_query = plan.shape, plan.shape.num_decode_query
        if not shape.chunk.rows:
            return attend(query, plan.decode)
        chunk = self._run_chunks(query[num_decode_query:], plan, attend)
        if not num_decode_query:
            return chunk
        return torch.cat([attend(query[:num_decode_query], plan.decode), chunk])

    def _bind_rows(self, arena: Arena, group: str, rows: int, width: int, pages: int) -> MaskedRows:
        return MaskedRows(
            pages=arena.view(f"attention.{group}.pages", rows * pages),
            mask=arena.view(f"attention.{group}.mask", rows, 1, width, pages * self._page_size),
        )

    def _fill_decode(self, group: MaskedRows, scope: AttentionScope) -> None:
        decode = scope.decode
        _fill_pages(group, decode.rows, scope.page_table)
        keys = _key_positions(group)  # [keys]
        tail = keys - decode.lengths[:, None, None]  # [rows, 1, keys] index into the tree's nodes
        bit = scope.ancestors[:, :, None] >> tail.clamp(0, MAX_NODES - 1)  # [rows, nodes, keys]
        is_ancestor = (bit & 1).bool() & (tail < MAX_NODES)
        _fill_mask(group, visible=(tail < 0) | is_ancestor)

    def _fill_chunk(self, plan: ReferencePlan, scope: AttentionScope) -> None:
        chunk, width = scope.chunk, plan.shape.chunk.width
        _fill_pages(plan.chunk, chunk.rows, scope.page_table)
        offsets = chunk_offsets(chunk)
        torch.add(chunk.owners * width, offsets, out=plan.places)
        place = torch.arange(width, device=offsets.device)
        position = chunk.starts[:, None] + place  # [rows, width]
        visible = _key_positions(plan.chunk) <= position[:, :, None]  # [rows, width, keys]
        _fill_mask(plan.chunk, visible=visible)

    def _run_chunks(self, query: torch.Tensor, plan: ReferencePlan, attend: Attend) -> torch.Tensor:
        """Attention of the flat chunk tokens; unused places of the rectangle hold zero queries."""
        chunk = plan.shape.chunk
        rectangle = query.new_zeros(chunk.rows * chunk.width, *query.shape[1:])
        rectangle.index_copy_(0, plan.places, query)
        return attend(rectangle, plan.chunk).index_select(0, plan.places)


def _attend(
    query: torch.Tensor,  # [rows * width, heads, head_dim]
    group: MaskedRows,
    *,
    layer: torch.Tensor,  # [pages, page_size, vectors, dim]
    attend: AttendStored,
) -> torch.Tensor:  # [rows * width, heads, channels]
    rows, keys = group.mask.shape[0], group.mask.shape[-1]
    stored = layer.index_select(0, group.pages).view(rows, keys, *layer.shape[2:])
    out = attend(query, stored, group.mask)
    graph_break(recompute_without_bad_keys, attend, query, stored, group.mask, out)
    return out


def _attend_heads(
    query: torch.Tensor,  # [rows * width, heads, head_dim]
    stored: torch.Tensor,  # [rows, keys, 2 * kv_heads, head_dim]
    mask: torch.Tensor,  # [rows, 1, width, keys]
    *,
    scale: float,
) -> torch.Tensor:  # [rows * width, heads, head_dim]
    rows, _, width, _ = mask.shape
    heads, head_dim = query.shape[1:]
    key, value = stored.transpose(1, 2).chunk(2, dim=1)  # [rows, kv_heads, keys, head_dim]
    out = F.scaled_dot_product_attention(
        query.view(rows, width, heads, head_dim).transpose(1, 2),
        key,
        value,
        attn_mask=mask,
        scale=scale,
        enable_gqa=True,
    )
    return out.transpose(1, 2).reshape(rows * width, heads, head_dim)


def _attend_latents(
    query: torch.Tensor,  # [rows * width, heads, dim]
    stored: torch.Tensor,  # [rows, keys, 1, dim]
    mask: torch.Tensor,  # [rows, 1, width, keys]
    *,
    scale: float,
    latent: int,
) -> torch.Tensor:  # [rows * width, heads, latent]
    """One product for all heads: attention per head would repeat the latents for each head."""
    rows, _, width, keys = mask.shape
    heads, dim = query.shape[1:]
    vectors = stored.squeeze(2).float()
    scores = query.reshape(rows, width * heads, dim).float() @ vectors.transpose(1, 2)
    added = mask.transpose(1, 2)  # [rows, width, 1, keys]
    weights = torch.softmax(scores.view(rows, width, heads, keys).mul_(scale).add_(added), dim=-1)
    read = weights.view(rows, width * heads, keys) @ vectors[..., :latent]
    return read.view(rows * width, heads, latent).to(query.dtype)


def _fill_pages(group: MaskedRows, rows: torch.Tensor, page_table: torch.Tensor) -> None:
    num_rows = rows.shape[0]
    pages = group.pages.view(num_rows, -1)
    pages.copy_(page_table[:, : pages.shape[1]].index_select(0, rows))


def _fill_mask(group: MaskedRows, *, visible: torch.Tensor) -> None:
    """Write 0 where a key is visible and -inf where it is not; `visible` is [rows, width, keys]."""
    group.mask.fill_(float("-inf"))
    group.mask.masked_fill_(visible.unsqueeze(1), 0.0)


def _key_positions(group: MaskedRows) -> torch.Tensor:  # [keys]
    return torch.arange(group.mask.shape[-1], device=group.mask.device)
