"""Which compressed entries each query token reads."""

from dataclasses import dataclass

import torch

from outrider.ops.sparse.compressed_index import BlockPlan, CompressedIndex


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedEntries:
    """Each query token reads the first `counts` entries of its list, at most the whole list.

    Entry e of a list is entry e % per_page of page table[list, e // per_page]. Where the list names
    entries themselves, `per_page` is 1.
    """

    pool: torch.Tensor  # [entries, width]
    table: torch.Tensor  # [lists, columns] int64
    per_page: int
    lists: torch.Tensor  # [num_query] int64 the list of each query token
    counts: torch.Tensor  # [num_query] int64

    @property
    def longest(self) -> int:
        """Entries of a whole list."""
        return self.table.shape[1] * self.per_page

    @property
    def slots(self) -> torch.Tensor:  # [num_query, longest]
        """The slot in the pool of every entry of every query token's list."""
        place = torch.arange(self.per_page, device=self.table.device)
        return (self.table[:, :, None] * self.per_page + place).flatten(1)[self.lists]


def selected_entries(
    pool: torch.Tensor, slots: torch.Tensor, index: CompressedIndex, block: BlockPlan
) -> ListedEntries:
    """The entries at slots of its own for every query token: [num_query, columns]."""
    lists = index.window.query_index
    return ListedEntries(pool=pool, table=slots, per_page=1, lists=lists, counts=block.counts)


def all_entries(
    pool: torch.Tensor, index: CompressedIndex, block: BlockPlan, per_page: int
) -> ListedEntries:
    """Every entry that a query token may read."""
    return ListedEntries(
        pool=pool,
        table=index.pages,
        per_page=per_page,
        lists=index.window.owners,
        counts=block.counts,
    )


def no_entries(like: torch.Tensor, index: CompressedIndex) -> ListedEntries:
    """Empty lists, for a layer without blocks. `like` has the type and width of an entry."""
    table, owners = index.pages[:, :0], index.window.owners
    return ListedEntries(pool=like, table=table, per_page=1, lists=owners, counts=owners)
