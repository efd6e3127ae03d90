"""Attention in plain torch, for any device: gather the keys of a row, mask, softmax.

The mask is built once per step, not per layer. This is the backend that others are tested against,
and the one of a CPU. Its bits depend on a query and its keys alone (`ordered_attention`).

The mask is added to the scores, and weights of 0 are multiplied with values. So a masked key that
is not finite would reach the result: it is then computed again without such keys, once.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from outrider.config.draft_config import MAX_NODES
from outrider.config.settings import MAX_PAGE
from outrider.kv.bad_keys import recompute_without_bad_keys
from outrider.ops.attention.attention_rule import AttentionRule
from outrider.ops.attention.fill_tree_order import fill_tree_order
from outrider.ops.attention.ordered_attention import (
    BLOCK,
    SLOT_ORDER,
    KeyOrder,
    SeenKeys,
    TreeOrder,
    attend_in_order,
    in_window,
    num_blocks,
    padded_keys,
)
from outrider.ops.graph_break import graph_break
from outrider.ops.tree.place_nodes import node_of_query, values_of_nodes
from outrider.ops.tree.plan_rows import chunk_offsets
from outrider.step.arena import Arena
from outrider.step.attention_backend import AttentionScope, Capabilities
from outrider.step.plan import AttentionPlan
from outrider.step.shape import StepShape

_ANY = 1 << 30
_KEYS_AND_VALUES = 0  # instead of the channels of a latent: vectors are keys, then values


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferencePlan(AttentionPlan):
    """Decode rows in place, unless they are ragged; those and chunks are copied to a rectangle of
    [rows, width] places and back.
    """

    shape: StepShape
    decode: SeenKeys
    queries: torch.Tensor  # [rows, nodes] int64 query token of each node, -1 if it does not run
    chunk: SeenKeys
    places: torch.Tensor  # [chunk.tokens] int64 place of each chunk token in the rectangle


Attend = Callable[[torch.Tensor, SeenKeys], torch.Tensor]  # from queries to what they read


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
            is_ragged=True,
            page_sizes=range(1, MAX_PAGE + 1),
            max_head_dim=_ANY,
            max_group=_ANY,
            max_latent=_ANY,
            needs_host_lengths=False,
        )

    def reserve(self, arena: Arena, largest: StepShape) -> None:
        keys, chunk = self._num_keys(largest), largest.chunk
        arena.reserve("attention.decode.slots", largest.rows * keys, torch.int64)
        arena.reserve("attention.decode.mask", largest.num_nodes * keys, torch.float32)
        arena.reserve("attention.decode.queries", largest.num_nodes, torch.int64)
        arena.reserve("attention.chunk.slots", chunk.rows * keys, torch.int64)
        # Chunks of one step share its token budget; `width * rows` can exceed it when they differ.
        arena.reserve("attention.chunk.mask", chunk.rows * chunk.width * keys, torch.float32)
        arena.reserve("attention.chunk.places", chunk.tokens, torch.int64)
        rows, nodes = largest.rows, largest.nodes
        arena.reserve("attention.tree.tail", rows * nodes, torch.int64)
        arena.reserve("attention.tree.path", rows * nodes * nodes, torch.int64)
        arena.reserve("attention.tree.back", rows * nodes * nodes, torch.int64)
        own = rows * num_blocks(keys) * (BLOCK + nodes)
        arena.reserve("attention.tree.own", own, torch.float32)

    def bind(self, arena: Arena, shape: StepShape) -> ReferencePlan:
        chunk, order = shape.chunk, self._bind_order(arena, shape)
        return ReferencePlan(
            shape=shape,
            decode=self._bind_rows(arena, "decode", shape, (shape.rows, shape.nodes), order),
            queries=arena.view("attention.decode.queries", shape.rows, shape.nodes),
            chunk=self._bind_rows(arena, "chunk", shape, (chunk.rows, chunk.width), SLOT_ORDER),
            places=arena.view("attention.chunk.places", chunk.tokens),
        )

    def fill(self, plan: AttentionPlan, scope: AttentionScope) -> None:
        assert isinstance(plan, ReferencePlan)
        if plan.shape.rows:
            self._fill_decode(plan.decode, scope)
            plan.queries.copy_(scope.queries)
        if plan.shape.chunk.rows:
            self._fill_chunk(plan, scope)

    def write_slots(
        self,
        plan: AttentionPlan,
        slots: torch.Tensor,  # [num_query]
    ) -> torch.Tensor:  # [num_query]
        del plan
        return slots

    def run(
        self,
        query: torch.Tensor,  # [num_query, heads, head_dim]
        layer: torch.Tensor,  # [pages, page_size, 2 * kv_heads, head_dim]
        plan: AttentionPlan,
        rule: AttentionRule,
    ) -> torch.Tensor:  # [num_query, heads, head_dim]
        assert isinstance(plan, ReferencePlan)
        attend = partial(_attend, layer=layer, rule=rule, channels=_KEYS_AND_VALUES)
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
        rule = AttentionRule(scale=scale)
        attend = partial(_attend, layer=layer, rule=rule, channels=latent)
        return self._run(query, plan, attend)

    def _run(self, query: torch.Tensor, plan: ReferencePlan, attend: Attend) -> torch.Tensor:
        shape, num_decode_query = plan.shape, plan.shape.num_decode_query
        if not shape.chunk.rows:
            return self._run_decode(query, plan, attend)
        chunk = self._run_chunks(query[num_decode_query:], plan, attend)
        if not num_decode_query:
            return chunk
        return torch.cat([self._run_decode(query[:num_decode_query], plan, attend), chunk])

    def _run_decode(self, query: torch.Tensor, plan: ReferencePlan, attend: Attend) -> torch.Tensor:
        """Attention of decode rows; nodes that do not run attend with any query."""
        if not plan.shape.ragged:
            return attend(query, plan.decode)
        rectangle = attend(values_of_nodes(query, plan.queries), plan.decode)
        return rectangle.index_select(0, node_of_query(plan.queries, plan.shape.ragged))

    def _num_keys(self, shape: StepShape) -> int:
        return padded_keys(shape.pages * self._page_size)

    def _bind_rows(
        self, arena: Arena, group: str, shape: StepShape, size: tuple[int, int], order: KeyOrder
    ) -> SeenKeys:
        (rows, width), keys = size, self._num_keys(shape)
        return SeenKeys(
            num_pages=shape.pages,
            slots=arena.view(f"attention.{group}.slots", rows, keys),
            mask=arena.view(f"attention.{group}.mask", rows, width, keys),
            order=order,
            indices={},
            windowed={},
            is_one_chunk=group == "chunk" and rows == 1,
        )

    def _bind_order(self, arena: Arena, shape: StepShape) -> KeyOrder:
        rows, nodes = shape.rows, shape.nodes
        if shape.tree.topk == 1 or nodes == 1:
            return SLOT_ORDER
        blocks = num_blocks(self._num_keys(shape))
        return TreeOrder(
            tail=arena.view("attention.tree.tail", rows, nodes),
            path=arena.view("attention.tree.path", rows, nodes, nodes),
            back=arena.view("attention.tree.back", rows, nodes, nodes),
            own=arena.view("attention.tree.own", rows, blocks, BLOCK + nodes),
        )

    def _fill_decode(self, group: SeenKeys, scope: AttentionScope) -> None:
        group.indices.clear()
        group.windowed.clear()
        self._fill_seen(group, scope)
        if isinstance(group.order, TreeOrder):
            lengths = scope.decode.lengths
            fill_tree_order(group.order, scope.ancestors, lengths, first=scope.first_node)

    def _fill_seen(self, group: SeenKeys, scope: AttentionScope) -> None:
        """Write the slots of decode rows, and the mask of their nodes."""
        decode = scope.decode
        self._fill_slots(group, decode.rows, scope.page_table)
        keys = _key_positions(group)  # [keys]
        tail = keys - decode.lengths[:, None, None]  # [rows, 1, keys] index into the tree's nodes
        bit = scope.ancestors[:, :, None] >> tail.clamp(0, MAX_NODES - 1)  # [rows, nodes, keys]
        is_ancestor = (bit & 1).bool() & (tail < MAX_NODES)
        _fill_mask(group, visible=(tail < 0) | is_ancestor)

    def _fill_chunk(self, plan: ReferencePlan, scope: AttentionScope) -> None:
        chunk, width = scope.chunk, plan.shape.chunk.width
        plan.chunk.indices.clear()
        plan.chunk.windowed.clear()
        self._fill_slots(plan.chunk, chunk.rows, scope.page_table)
        offsets = chunk_offsets(chunk)
        torch.add(chunk.owners * width, offsets, out=plan.places)
        place = torch.arange(width, device=offsets.device)
        # Places past the end of a chunk are not used. They see its tokens, and no slot after them.
        last = (chunk.counts - 1).clamp_min(0)[:, None]
        position = chunk.starts[:, None] + torch.minimum(place, last)  # [rows, width]
        visible = _key_positions(plan.chunk) <= position[:, :, None]  # [rows, width, keys]
        _fill_mask(plan.chunk, visible=visible)

    def _fill_slots(self, group: SeenKeys, rows: torch.Tensor, page_table: torch.Tensor) -> None:
        """Where the keys of every row are; those past its pages are on page 0, and masked."""
        size = self._page_size
        pages = page_table[:, : group.num_pages].index_select(0, rows)
        place = torch.arange(size, device=rows.device)
        slots = (pages[:, :, None] * size + place).flatten(1)
        group.slots.zero_()
        group.slots[:, : slots.shape[1]] = slots

    def _run_chunks(self, query: torch.Tensor, plan: ReferencePlan, attend: Attend) -> torch.Tensor:
        """Attention of the flat chunk tokens; unused places of the rectangle hold zero queries."""
        chunk = plan.shape.chunk
        rectangle = query.new_zeros(chunk.rows * chunk.width, *query.shape[1:])
        rectangle.index_copy_(0, plan.places, query)
        return attend(rectangle, plan.chunk).index_select(0, plan.places)


def _attend(
    query: torch.Tensor,  # [rows * width, heads, head_dim]
    seen: SeenKeys,
    *,
    layer: torch.Tensor,  # [pages, page_size, vectors, dim]
    rule: AttentionRule,
    channels: int,  # of a latent that are its value; or _KEYS_AND_VALUES
) -> torch.Tensor:  # [rows * width, heads, channels]
    vectors, dim = layer.shape[2:]
    if vectors not in seen.indices:  # the first layer
        head = torch.arange(vectors, device=layer.device)[:, None]
        index = torch.add(head, seen.slots.view(-1), alpha=vectors)
        seen.indices[vectors] = index.view(-1)
    stored = layer.view(-1, dim).index_select(0, seen.indices[vectors])
    stored = stored.view(-1, seen.slots.shape[1], dim).float()  # [vectors * rows, keys, dim]
    own = in_window(seen, rule.signed_window)
    attend = partial(_attend_stored, seen=own, rule=rule, channels=channels)
    out = attend(query, stored)
    graph_break(
        recompute_without_bad_keys, attend, query, stored, layer, seen.slots, own.mask, seen.mask,
        out,
    )  # fmt: skip
    return out


def _attend_stored(
    query: torch.Tensor,  # [rows * width, heads, dim]
    stored: torch.Tensor,  # [vectors * rows, keys, dim] float32
    *,
    seen: SeenKeys,
    rule: AttentionRule,
    channels: int,
) -> torch.Tensor:  # [rows * width, heads, channels]
    if channels:
        return attend_in_order(query, stored, stored[..., :channels], seen, rule)
    half = len(stored) // 2
    return attend_in_order(query, stored[:half], stored[half:], seen, rule)


def _fill_mask(group: SeenKeys, *, visible: torch.Tensor) -> None:
    """Write 0 where a key is visible and -inf where it is not; `visible` is [rows, width, keys]."""
    group.mask.fill_(float("-inf"))
    group.mask.masked_fill_(visible, 0.0)


def _key_positions(group: SeenKeys) -> torch.Tensor:  # [keys]
    return torch.arange(group.mask.shape[-1], device=group.mask.device)
