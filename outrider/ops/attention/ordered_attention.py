"""Attention in torch whose bits depend on a query and its keys alone, in the order of positions.

A library's float32 product sums in ascending order if it has at least 4 rows and at most 192 terms,
whatever its other sizes are (measured: docs/lab/log.md). Products with zeros between the terms have
the same bits. So queries are padded to 4 rows, and values are summed in blocks of 128 keys that
begin at fixed positions. A softmax sums in 16 parts, by the place of a key modulo 16.
"""

from dataclasses import dataclass, replace
from typing import Protocol

import torch

from outrider.ops.attention.attention_rule import AttentionRule
from outrider.ops.fixed_activations import soft_cap
from outrider.ops.linear.fixed_product import fixed_product, match_product

KEY_MULTIPLE = 16  # keys of a row are padded to a multiple of this
BLOCK = 128  # keys whose values are summed in one product
_MOST_SCORES = 1 << 19  # at a time, so that they stay in a core's cache


class KeyOrder(Protocol):
    """Sums over the keys of a query in the order of their positions."""

    def weigh(self, scores: torch.Tensor, shape: torch.Size, first: int) -> torch.Tensor:
        """The softmax of scores, [kv_heads * rows, queries, keys] both.

        The queries are those of `shape`, [kv_heads, rows, places, group, ..], and padding. The
        first place is `first`.
        """
        ...

    def block(self, weights: torch.Tensor, start: int) -> torch.Tensor:
        """The weights of the keys whose positions are in the block at `start`.

        They belong to the slots from `start` on: [kv_heads * rows, n, keys] -> [.., n, block].
        """
        ...


class SlotOrder:
    """Keys are stored in the order of their positions: chains and chunks of prompts."""

    def weigh(self, scores: torch.Tensor, shape: torch.Size, first: int) -> torch.Tensor:
        del shape, first
        return torch.softmax(scores, dim=-1)

    def block(self, weights: torch.Tensor, start: int) -> torch.Tensor:
        return weights[..., start : start + BLOCK]


SLOT_ORDER = SlotOrder()


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeOrder:
    """The nodes of a tree are stored one after another; a path has some of them."""

    tail: torch.Tensor  # [rows, nodes] int64 slots of the nodes
    path: torch.Tensor  # [rows, nodes, nodes] int64 slots: a node's ancestors by depth, then others
    back: torch.Tensor  # [rows, nodes, nodes] int64 slots: the inverse of `path`
    own: torch.Tensor  # [rows, blocks, block + nodes] float32: 1 where a position is in the block

    def weigh(self, scores: torch.Tensor, shape: torch.Size, first: int) -> torch.Tensor:
        outer, places = shape[:4], slice(first, first + shape[2])
        ends = (*outer, self.tail.shape[1])
        tail = self.tail[:, None, None].expand(ends)  # of every query token
        queries = outer[2] * outer[3]

        def move(values: torch.Tensor, sources: torch.Tensor) -> None:
            by_place = values[:, :queries].view(*outer, -1)
            moved = by_place.gather(4, sources[:, places, None].expand(ends))
            by_place.scatter_(4, tail, moved)

        move(scores, self.path)
        weights = torch.softmax(scores, dim=-1)
        move(weights, self.back)
        return weights

    def block(self, weights: torch.Tensor, start: int) -> torch.Tensor:
        rows, nodes = self.tail.shape
        part = weights[..., start : start + BLOCK + nodes]
        own = self.own[:, start // BLOCK, None, : part.shape[2]]
        return (part.view(-1, rows, *part.shape[1:]) * own).flatten(0, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenKeys:
    """Rows with the same number of query places, and which keys each place may read."""

    num_pages: int  # of every row that may hold keys
    slots: torch.Tensor  # [rows, keys] int64 of the pool; keys are a multiple of KEY_MULTIPLE
    mask: torch.Tensor  # [rows, width, keys] float32 added to the scores: 0 or -inf
    order: KeyOrder
    indices: dict[int, torch.Tensor]  # [vectors * rows * keys] by vectors, made in each step
    windowed: dict[int, torch.Tensor]  # masks of layers by signed window, made in each step
    is_one_chunk: bool  # the last place reads at most all keys, the one before it one key less, ...


def in_window(seen: SeenKeys, window: int) -> SeenKeys:
    """The same rows for a layer with a sliding window: a query sees its newest keys.

    A negative window is an attention chunk (`AttentionRule.signed_window`).

    Slots of visible keys are in the order of positions, also along the path of a tree. So the
    newest keys of a query are the last ones that it sees.
    """
    if abs(window) >= seen.mask.shape[2]:
        return seen
    if window not in seen.windowed:  # the first layer with it
        rank = (seen.mask == 0).cumsum(dim=2)  # [rows, width, keys] keys that are seen up to here
        limit = rank[:, :, -1:]
        oldest = limit - window if window > 0 else (limit - 1) // -window * -window
        seen.windowed[window] = seen.mask.masked_fill(rank <= oldest, float("-inf"))
    return replace(seen, mask=seen.windowed[window])


def padded_keys(keys: int) -> int:
    """The number of keys that attention computes with."""
    return -(-keys // KEY_MULTIPLE) * KEY_MULTIPLE


def num_blocks(keys: int) -> int:
    """Blocks that values are summed in."""
    return -(-keys // BLOCK)


def attend_in_order(
    query: torch.Tensor,  # [rows * width, heads, dim]
    keys: torch.Tensor,  # [kv_heads * rows, keys, dim] float32
    values: torch.Tensor,  # [kv_heads * rows, keys, channels] float32
    seen: SeenKeys,
    rule: AttentionRule,
) -> torch.Tensor:  # [rows * width, heads, channels]
    """Attention of every query token over the keys that it sees."""
    (rows, width, num_keys), (_, heads, dim) = seen.mask.shape, query.shape
    kv_heads = len(keys) // rows
    group = heads // kv_heads
    folded = query.view(rows, width, kv_heads, group, dim).permute(2, 0, 1, 3, 4).float()
    most = max(1, _MOST_SCORES // (len(keys) * group * num_keys))  # places at a time
    if most >= width:
        out = _attend_places(folded, keys, values, seen.mask, seen.order, 0, rule)
    else:
        out = torch.cat(
            [
                _attend_part(folded, keys, values, seen, range(start, start + most), rule)
                for start in range(0, width, most)
            ],
            dim=2,
        )
    return out.permute(1, 2, 0, 3, 4).reshape(rows * width, heads, -1).to(query.dtype)


def _attend_part(
    query: torch.Tensor,  # [kv_heads, rows, width, group, dim]
    keys: torch.Tensor,  # [kv_heads * rows, keys, dim]
    values: torch.Tensor,  # [kv_heads * rows, keys, channels]
    seen: SeenKeys,
    places: range,
    rule: AttentionRule,
) -> torch.Tensor:  # [kv_heads, rows, places, group, channels]
    """Attention of some places, over no more keys than they can see."""
    first, last = places.start, places.stop
    width, num_keys = seen.mask.shape[1:]
    unread = max(0, width - last) if seen.is_one_chunk else 0
    end = padded_keys(num_keys - unread)
    mask = seen.mask[:, first:last, :end]
    part = query[:, :, first:last]
    return _attend_places(part, keys[:, :end], values[:, :end], mask, seen.order, first, rule)


def _attend_places(
    query: torch.Tensor,  # [kv_heads, rows, places, group, dim]
    keys: torch.Tensor,  # [kv_heads * rows, keys, dim]
    values: torch.Tensor,  # [kv_heads * rows, keys, channels]
    mask: torch.Tensor,  # [rows, places, keys]
    order: KeyOrder,
    first: int,  # place
    rule: AttentionRule,
) -> torch.Tensor:  # [kv_heads, rows, places, group, channels]
    kv_heads, rows, places, group, dim = query.shape
    num = places * group
    scores = match_product(query.reshape(len(keys), num, dim), keys)
    by_place = scores[:, :num].view(kv_heads, rows, places, group, -1)
    if rule.is_capped:
        by_place.copy_(soft_cap(by_place * rule.scale, rule.soft_cap)).add_(mask[:, :, None])
    else:
        torch.add(mask[:, :, None], by_place, alpha=rule.scale, out=by_place)
    weights = order.weigh(scores, query.shape, first)
    out = _weighted_sum(weights, values, order)
    by_place = out[:, :num].view(kv_heads, rows, places, group, -1)
    if rule.sinks is not None:
        best, best_weight = (
            each.amax(-1)[:, :num].view(kv_heads, rows, places, group) for each in (scores, weights)
        )
        sinks = rule.sinks.view(kv_heads, 1, 1, group)
        by_place.mul_(_share_of_keys(best, best_weight, sinks)[..., None])
    return by_place


def _share_of_keys(
    best: torch.Tensor,  # [...] largest score
    best_weight: torch.Tensor,  # [...] its weight in a softmax without sink
    sinks: torch.Tensor,  # [...] broadcast
) -> torch.Tensor:  # [...]
    """The share of all keys in a softmax with a sink.

    The softmax has divided by its sum, which the largest weight still tells.
    """
    return ((sinks - best).exp_() * best_weight).add_(1.0).reciprocal_()


def _weighted_sum(
    weights: torch.Tensor,  # [n, queries, keys]
    values: torch.Tensor,  # [n, keys, channels]
    order: KeyOrder,
) -> torch.Tensor:  # [n, queries, channels]
    """Block after block of positions, each in ascending order."""
    first = order.block(weights, 0)
    out = fixed_product(first, values[:, : first.shape[2]])
    for start in range(BLOCK, weights.shape[2], BLOCK):
        part = order.block(weights, start)
        out.add_(fixed_product(part, values[:, start : start + part.shape[2]]))
    return out
