"""What layers with compressed attention compute on a plan, in plain torch: the law of the kernels.

A source is a slot of a ring, or past its last slot a query token of the step, or absent.
"""

from dataclasses import dataclass

import torch

from outrider.attention.compressed import BlockPart, CompressedPlan, RingPart


@dataclass(frozen=True, slots=True)
class Tokens:
    """Vectors of tokens: those that a ring kept, and those that this step brings."""

    ring: torch.Tensor  # [slots, width]
    fresh: torch.Tensor  # [num_query, width]

    def read(self, sources: torch.Tensor) -> torch.Tensor:  # [n, window] -> [n, window, width]
        """The vectors of all sources; any for one that is absent."""
        num_slots, shape = self.ring.shape[0], (*sources.shape, self.ring.shape[1])
        kept = self.ring.index_select(0, sources.clamp(0, num_slots - 1).flatten()).view(shape)
        fresh = self.fresh.index_select(0, (sources - num_slots).clamp_min(0).flatten()).view(shape)
        return torch.where((sources >= num_slots)[..., None], fresh, kept)

    def keep(self, part: RingPart) -> None:
        """Write what the step brought to the ring. Nobody may read the step's windows after it."""
        self.ring.index_copy_(0, part.writes, self.fresh)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """Entries that query tokens read: the first `counts` of the list that each one has."""

    pool: torch.Tensor  # [entries, width]
    slots: torch.Tensor  # [lists, longest] int64 in the pool
    lists: torch.Tensor  # [num_query] int64
    counts: torch.Tensor  # [num_query] int64


def compress(
    tokens: Tokens,  # of width 2 * series * width: a value and a gate per lane
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


def entry_slots(pages: torch.Tensor, held: int) -> torch.Tensor:  # [rows, pages * held]
    """Where the entries of every row lie, in order; a page holds `held` of them."""
    place = torch.arange(held, device=pages.device)
    return (pages[:, :, None] * held + place).flatten(1)


def index_scores(
    query: torch.Tensor,  # [num_query, heads, width]
    weights: torch.Tensor,  # [num_query, heads]
    keys: Listed,
) -> torch.Tensor:  # [num_query, longest] float32; -inf past a query token's count
    """How much every entry matters to every query token: a weighted sum over heads."""
    slots = keys.slots[keys.lists]  # [num_query, longest]
    key = keys.pool[slots].float()  # [num_query, longest, width]
    match = torch.einsum("nhw,nkw->nhk", query.float(), key).relu_()
    scores = torch.einsum("nhk,nh->nk", match, weights.float())
    place = torch.arange(slots.shape[1], device=slots.device)
    return scores.masked_fill(place >= keys.counts[:, None], float("-inf"))


def choose_entries(
    scores: torch.Tensor,  # [num_query, longest]
    entries: Listed,
    top_k: int,
) -> Listed:
    """The best entries of every query token; of equal ones the older."""
    best = scores.sort(dim=1, descending=True, stable=True).indices[:, :top_k]
    slots = entries.slots[entries.lists].gather(1, best)
    lists = torch.arange(slots.shape[0], device=slots.device)
    return Listed(
        pool=entries.pool, slots=slots, lists=lists, counts=entries.counts.clamp_max(top_k)
    )


def all_entries(pool: torch.Tensor, plan: CompressedPlan, part: BlockPart, held: int) -> Listed:
    """Every entry a query token may see."""
    return Listed(
        pool=pool,
        slots=entry_slots(plan.pages, held),
        lists=plan.owners,
        counts=part.counts,
    )


def attend(
    query: torch.Tensor,  # [num_query, heads, width]
    window: Tokens,
    sources: torch.Tensor,  # [num_query, window]
    entries: Listed,
    sinks: torch.Tensor,  # [heads] float32 a logit per head whose value is nothing
    scale: float,
) -> torch.Tensor:  # [num_query, heads, width]
    """One softmax over window, entries and sink. A vector is its own key and value."""
    place = torch.arange(entries.slots.shape[1], device=query.device)
    is_seen = torch.cat([sources >= 0, place < entries.counts[:, None]], dim=1)
    listed = entries.pool[entries.slots[entries.lists]]  # [num_query, longest, width]
    vectors = torch.cat([window.read(sources), listed], dim=1).float()
    logits = torch.einsum("nhw,nkw->nhk", query.float(), vectors) * scale
    logits = logits.masked_fill_(~is_seen[:, None], float("-inf"))
    sink = sinks[None, :, None].expand(query.shape[0], -1, 1)
    shares = torch.cat([logits, sink], dim=2).softmax(2)[:, :, :-1]
    return torch.einsum("nhk,nkw->nhw", shares, vectors).to(query.dtype)


def no_entries(query: torch.Tensor, pool: torch.Tensor) -> Listed:
    """For a layer that has none."""
    none = torch.zeros(query.shape[0], dtype=torch.int64, device=query.device)
    return Listed(pool=pool, slots=none.new_empty(1, 0), lists=none, counts=none)
