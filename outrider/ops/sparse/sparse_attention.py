"""What layers with compressed attention compute on a plan, in plain torch: the law of the kernels.

A source is a slot of a ring, or past its last slot a query token of the step, or absent.
"""

from dataclasses import dataclass

import torch

from outrider.kv.ring_plan import RingTokens
from outrider.models.deepseek_v4.compressed_plan import BlockPlan, CompressedPlan
from outrider.ops.norm_rope.partial_rope import TailRotation, VectorNorm, norm_and_rotate


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedEntries:
    """Entries that query tokens read: the first `counts` of the list that each one has, and no
    more than there are.

    Entry e of a list is at place e % held of what is in column e // held of its table: of a page
    that holds so many, or, where `held` is 1, of itself.
    """

    pool: torch.Tensor  # [entries, width]
    table: torch.Tensor  # [lists, columns] int64
    per_page: int
    lists: torch.Tensor  # [num_query] int64
    counts: torch.Tensor  # [num_query] int64

    @property
    def longest(self) -> int:
        return self.table.shape[1] * self.per_page

    @property
    def slots(self) -> torch.Tensor:  # [num_query, longest]
        """Where in the pool every entry of every query token's list lies."""
        place = torch.arange(self.per_page, device=self.table.device)
        return (self.table[:, :, None] * self.per_page + place).flatten(1)[self.lists]


def compress(
    tokens: RingTokens,  # of width 2 * series * width: a value and a gate per lane
    sources: torch.Tensor,  # [windows, window]
    bias: torch.Tensor,  # [window, width] float32, added to gates by place in the window
) -> torch.Tensor:  # [windows, width] float32
    """The mean of every window, each lane weighted by a softmax of its gates.

    With two series, the first half of a window reads the first one and the second the second.
    """
    width = bias.shape[1]
    states = tokens.read(sources).float().view(*sources.shape, 2, -1, width)
    if states.shape[3] == 2:  # [windows, window, value and gate, series, width]
        first, second = states.chunk(2, dim=1)
        states = torch.cat([first[:, :, :, 0], second[:, :, :, 1]], dim=1)
    else:
        states = states.squeeze(3)
    value, gate = states.unbind(2)  # [windows, window, width]
    gate = (gate + bias).masked_fill((sources < 0)[..., None], float("-inf"))
    return (value * gate.softmax(1)).sum(1)


def store_entries(
    tokens: RingTokens,
    part: BlockPlan,
    bias: torch.Tensor,  # [window, width] float32
    norm: VectorNorm,
    rotation: TailRotation,  # at the starts of the blocks
    pool: torch.Tensor,  # [entries, width]
) -> None:
    """Write the entries of all blocks that end in this step: compressed, normalised, turned."""
    if pool.is_cuda:
        store_on_gpu(tokens, part, bias, norm, rotation, pool)
        return
    pooled = compress(tokens, part.ring.sources, bias)[:, None]
    entries = norm_and_rotate(pooled, norm, rotation).squeeze(1)
    pool.index_copy_(0, part.targets, entries.to(pool.dtype))


def store_on_gpu(
    tokens: RingTokens,
    part: BlockPlan,
    bias: torch.Tensor,
    norm: VectorNorm,
    rotation: TailRotation,
    pool: torch.Tensor,
) -> None:
    """The same in one launch."""
    from outrider.ops.sparse.compress_triton import store_entries as launch  # a CPU has no Triton

    angles, where = (rotation.cos, rotation.sin), (part.ring.sources, part.targets)
    launch(tokens.ring, tokens.fresh, where, bias, (norm.weight, norm.eps), angles, pool)


def index_scores(
    query: torch.Tensor,  # [num_query, heads, width]
    weights: torch.Tensor,  # [num_query, heads]
    keys: ListedEntries,
    scale: float,
) -> torch.Tensor:  # [num_query, longest] float32; -inf past a query token's count
    """How much every entry matters to every query token: a weighted sum over heads."""
    key = keys.pool[keys.slots].float()  # [num_query, longest, width]
    match = torch.einsum("nhw,nkw->nhk", query.float(), key).relu_()
    scores = torch.einsum("nhk,nh->nk", match, weights.float() * scale)
    place = torch.arange(keys.longest, device=scores.device)
    return scores.masked_fill(place >= keys.counts[:, None], float("-inf"))


def select_entries(
    query: torch.Tensor,  # [num_query, heads, width]
    weights: torch.Tensor,  # [num_query, heads]
    keys: ListedEntries,
    scale: float,
    top_k: int,
) -> torch.Tensor:  # [num_query, at most top_k] int64 slots
    """The entries whose keys score best with every query token; of equal ones the older.

    Past a query token's count there is any slot of the pool.
    """
    if query.is_cuda:
        return select_on_gpu(query, weights, keys, scale, top_k)
    scores = index_scores(query, weights, keys, scale)
    best = scores.sort(dim=1, descending=True, stable=True).indices[:, :top_k]
    return keys.slots.gather(1, best)


def select_on_gpu(
    query: torch.Tensor, weights: torch.Tensor, keys: ListedEntries, scale: float, top_k: int
) -> torch.Tensor:
    """The same in two launches; the chosen ones come in order of age."""
    from outrider.ops.sparse.indexer_triton import select_entries as launch

    listed = (keys.table, keys.lists, keys.counts)
    return launch(
        query, weights, keys.pool, listed, scale=scale, per_page=keys.per_page, top_k=top_k
    )


def selected_entries(
    pool: torch.Tensor, slots: torch.Tensor, plan: CompressedPlan, part: BlockPlan
) -> ListedEntries:
    """For every query token the entries at slots of its own."""
    return ListedEntries(
        pool=pool, table=slots, per_page=1, lists=plan.query_index, counts=part.counts
    )


def all_entries(
    pool: torch.Tensor, plan: CompressedPlan, part: BlockPlan, per_page: int
) -> ListedEntries:
    """Every entry a query token may see; a page holds `held` of them."""
    return ListedEntries(
        pool=pool, table=plan.pages, per_page=per_page, lists=plan.owners, counts=part.counts
    )


def no_entries(window: RingTokens, plan: CompressedPlan) -> ListedEntries:
    """For a layer that has none: of an empty list nobody reads any, whatever the count."""
    table, owners = plan.pages[:, :0], plan.owners
    return ListedEntries(pool=window.ring, table=table, per_page=1, lists=owners, counts=owners)


def attend(
    query: torch.Tensor,  # [num_query, heads, width]
    window: RingTokens,
    plan: CompressedPlan,
    entries: ListedEntries,
    sinks: torch.Tensor,  # [heads] float32 a logit per head whose value is nothing
    scale: float,
) -> torch.Tensor:  # [num_query, heads, width]
    """One softmax over window, entries and sink. A vector is its own key and value."""
    if query.is_cuda:
        return attend_on_gpu(query, window, plan, entries, sinks, scale)
    sources = plan.window.sources
    place = torch.arange(entries.longest, device=query.device)
    is_seen = torch.cat([sources >= 0, place < entries.counts[:, None]], dim=1)
    vectors = torch.cat([window.read(sources), entries.pool[entries.slots]], dim=1).float()
    logits = torch.einsum("nhw,nkw->nhk", query.float(), vectors) * scale
    logits = logits.masked_fill_(~is_seen[:, None], float("-inf"))
    sink = sinks[None, :, None].expand(query.shape[0], -1, 1)
    shares = torch.cat([logits, sink], dim=2).softmax(2)[:, :, :-1]
    return torch.einsum("nhk,nkw->nhw", shares, vectors).to(query.dtype)


def attend_on_gpu(
    query: torch.Tensor,
    window: RingTokens,
    plan: CompressedPlan,
    entries: ListedEntries,
    sinks: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """The same, with chains split over keys."""
    from outrider.ops.sparse.sparse_attention_triton import attend as launch

    return launch(
        query,
        (window.ring, window.fresh, plan.window.sources),
        (entries.pool, entries.table, entries.lists, entries.counts),
        sinks,
        scale=scale,
        per_page=entries.per_page,
        num_split=plan.shape.num_decode_query,
    )
