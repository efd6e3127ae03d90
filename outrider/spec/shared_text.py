"""Texts of requests that ended, on the device, and where their last tokens can be looked up.

It takes the place of a suffix trie. A trie node is a context with its count; here the positions are
sorted by the hash of the context before them, so all positions of one context are neighbours.
Memory is fixed: a new text overwrites the oldest ones.
"""

from collections.abc import Sequence

import torch

from outrider.ops.tree.context_keys import CONTEXTS, END, LONGEST_MATCH, NO_KEY, context_keys
from outrider.ops.tree.context_order import order_places_
from outrider.ops.tree.suffix_paths import StoredTexts
from outrider.step.host_copy import upload
from outrider.wire.scheduled_batch import NO_OWNER, FinishedText, RowAdmission

CAPACITY = 1 << 16  # tokens


class SharedText:
    """Owns finished texts and, per row, whose texts it may read."""

    def __init__(
        self, *, rows: int, longest_path: int, device: torch.device, capacity: int = CAPACITY
    ) -> None:
        self._first = LONGEST_MATCH  # before it and after the last text nothing matches
        self._stop = self._first + capacity
        size, levels = self._stop + longest_path + 1, len(CONTEXTS)
        self._readers = torch.full((rows,), NO_OWNER, dtype=torch.int64, device=device)
        self._keys = torch.full((levels, size), NO_KEY, dtype=torch.int64, device=device)
        self.texts = StoredTexts(
            tokens=torch.full((size,), END, dtype=torch.int64, device=device),
            owners=torch.full((size,), NO_OWNER, dtype=torch.int64, device=device),
            keys=self._keys.clone(),
            places=torch.arange(size, device=device).repeat(levels, 1),
        )
        self._next = self._first

    def admit(self, admissions: Sequence[RowAdmission]) -> None:
        """Note whose texts new rows may read."""
        for admission in admissions:
            self._readers[admission.row] = admission.owner

    def readers(self, rows: torch.Tensor) -> torch.Tensor:  # [rows] -> [rows]
        """Whose texts some rows may read."""
        return self._readers.index_select(0, rows)

    def forget(self) -> None:
        """Drop all texts."""
        self.texts.tokens.fill_(END)
        self._keys.fill_(NO_KEY)
        self._order(slice(None))

    def append(self, texts: Sequence[FinishedText]) -> None:
        """Store texts over the oldest ones. Of one that is too long, the end is stored."""
        for text in texts:
            self._write(text)

    def _write(self, text: FinishedText) -> None:
        stored, tokens = self.texts, text.tokens[-((self._stop - self._first) // 4) :]
        if self._next + len(tokens) + 1 > self._stop:
            self._next = self._first
        begin, end = self._next, self._next + len(tokens)
        device = stored.tokens.device
        stored.tokens[begin : end + 1] = upload((*tokens, END), torch.int64, device)
        stored.owners[begin : end + 1] = text.owner
        # Contexts that reach over the new end are none any more.
        stop = min(end + LONGEST_MATCH, stored.tokens.shape[0])
        windows = stored.tokens[begin - LONGEST_MATCH + 1 : stop].unfold(0, LONGEST_MATCH, 1)
        self._keys[:, begin:stop] = context_keys(windows.flip(1), stored.owners[begin:stop]).T
        self._order(slice(begin, stop))
        self._next = end + 1

    def _order(self, changed: slice) -> None:
        order_places_(self._keys, self.texts.keys, self.texts.places, changed)
