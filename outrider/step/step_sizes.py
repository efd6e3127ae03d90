"""The sizes of a batch before padding. Ranks that run one step agree on them before `fit`."""

from collections.abc import Sequence
from dataclasses import dataclass

from outrider.wire.draft_budget import PLAIN, Budget
from outrider.wire.scheduled_batch import ScheduledBatch, ScheduledDecodes


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSizes:
    """Raw sizes of one batch, or the largest of several batches that run as one step."""

    decodes: int
    tree: Budget  # the largest of all rows
    drafts: int  # nodes that all rows may draft together
    most_cached: int  # bound of cached tokens before the longest decode row
    chunks: int
    chunk_tokens: int  # all chunks together
    longest_chunk: int
    last_chunk_end: int  # cached tokens and chunk together, of the longest prompt so far
    has_embeds: bool = False  # embeddings stand in place of some chunk tokens
    has_axes: bool = False  # rotary positions of some chunk tokens are not their positions
    spread: int = 0  # chunk tokens that the smallest of these batches lacks: it pads more


def sizes_of(batch: ScheduledBatch) -> StepSizes:
    counts = [len(chunk.tokens) for chunk in batch.chunks]
    return StepSizes(
        decodes=len(batch.decodes),
        tree=_widest(batch.decodes.budgets),
        drafts=_num_drafts(batch.decodes),
        most_cached=max(batch.decodes.bounds, default=0),
        chunks=len(counts),
        chunk_tokens=sum(counts),
        longest_chunk=max(counts, default=0),
        last_chunk_end=max([chunk.start + len(chunk.tokens) for chunk in batch.chunks], default=0),
        has_embeds=any(chunk.spans for chunk in batch.chunks),
        has_axes=any(chunk.has_axes for chunk in batch.chunks),
    )


def _num_drafts(decodes: ScheduledDecodes) -> int:
    return min(sum([budget.nodes - 1 for budget in decodes.budgets]), decodes.most_drafts)


def joined_sizes(sizes: Sequence[StepSizes]) -> StepSizes:
    """What has room for each of these batches."""
    chunk_tokens = max(each.chunk_tokens for each in sizes)
    return StepSizes(
        decodes=max(each.decodes for each in sizes),
        tree=_widest([each.tree for each in sizes]),
        drafts=max(each.drafts for each in sizes),
        most_cached=max(each.most_cached for each in sizes),
        chunks=max(each.chunks for each in sizes),
        chunk_tokens=chunk_tokens,
        longest_chunk=max(each.longest_chunk for each in sizes),
        last_chunk_end=max(each.last_chunk_end for each in sizes),
        has_embeds=any(each.has_embeds for each in sizes),
        has_axes=any(each.has_axes for each in sizes),
        spread=chunk_tokens - min(each.chunk_tokens for each in sizes),
    )


def _widest(budgets: Sequence[Budget]) -> Budget:
    """The tree that has room for each of these budgets. Rows of one kind share one object."""
    kinds = tuple({id(budget): budget for budget in budgets}.values()) or (PLAIN,)
    if len(kinds) == 1:
        return kinds[0]
    return Budget(
        steps=max(budget.steps for budget in kinds),
        topk=max(budget.topk for budget in kinds),
        nodes=max(budget.nodes for budget in kinds),
    )
