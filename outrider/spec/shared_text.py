"""Texts of requests that ended, on the device, and where their last tokens can be looked up.

It takes the place of a suffix trie. A trie node is a context with its count; here the positions are
sorted by the hash of the context before them, so all positions of one context are neighbours, and
an append is one sort. Memory is fixed: a new text overwrites the oldest ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from outrider.step.host_copy import upload
from outrider.wire.scheduled_batch import NO_OWNER, FinishedText, RowAdmission

CAPACITY = 1 << 16  # tokens; sorting them takes 2 ms on one core for each of the contexts
LONGEST_MATCH = 24  # tokens that are compared
_CONTEXTS = (3, 6, 12)  # tokens of a looked-up context: the shorter ones find what the longest miss
_LATEST = 8  # positions of each context that are compared
_END = -1  # after every text, so that no match and no draft leads from one text to another
_NO_KEY = torch.iinfo(torch.int64).max


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedMatches:
    """Places in finished texts after which the last tokens of a row occurred."""

    matched: torch.Tensor  # [rows, places] tokens that match; 0 where there is no such place
    paths: torch.Tensor  # [rows, places, steps] the tokens that followed; -1 after the text ended


class SharedText:
    """Owns finished texts and, per row, whose texts it may read."""

    def __init__(
        self, *, rows: int, longest_path: int, device: torch.device, capacity: int = CAPACITY
    ) -> None:
        self._first = LONGEST_MATCH  # before it and after the last text nothing matches
        self._stop = self._first + capacity
        size, levels = self._stop + longest_path + 1, len(_CONTEXTS)
        self._tokens = torch.full((size,), _END, dtype=torch.int64, device=device)
        self._owners = torch.full((size,), NO_OWNER, dtype=torch.int64, device=device)
        self._readers = torch.full((rows,), NO_OWNER, dtype=torch.int64, device=device)
        self._keys = torch.full((levels, size), _NO_KEY, dtype=torch.int64, device=device)
        self._sorted_keys = self._keys.clone()
        self._places = torch.zeros_like(self._keys)
        self._next = self._first

    def admit(self, admissions: Sequence[RowAdmission]) -> None:
        """Note whose texts new rows may read."""
        for admission in admissions:
            self._readers[admission.row] = admission.owner

    def forget(self) -> None:
        """Drop all texts."""
        self._tokens.fill_(_END)
        self._keys.fill_(_NO_KEY)
        self._sort()

    def append(self, texts: Sequence[FinishedText]) -> None:
        """Store texts over the oldest ones. Of one that is too long, the end is stored."""
        for text in texts:
            self._write(text)
        self._sort()

    def look_up(
        self,
        rows: torch.Tensor,  # [rows] indices of device tables
        last: torch.Tensor,  # [rows, LONGEST_MATCH] last tokens, the latest first; -1 before them
        *,
        steps: int,
        most: int,  # places of a row
    ) -> SharedMatches:
        """The longest matches in texts that the rows may read, and what followed there."""
        readers = self._readers.index_select(0, rows)
        places = self._candidates(_context_keys(last, readers))  # [rows, candidates]
        back = torch.arange(LONGEST_MATCH, device=last.device)
        stored = self._tokens[(places[:, :, None] - back).clamp_min(0)]
        is_equal = (stored == last[:, None]) & (stored != _END)
        matched = is_equal.cumprod(2).sum(2)  # [rows, candidates]
        is_allowed = (self._owners[places] == readers[:, None]) & (readers != NO_OWNER)[:, None]
        matched = _without_repeats(matched * is_allowed)
        best = matched.topk(min(most, matched.shape[1]), dim=1)
        ahead = torch.arange(1, steps + 1, device=last.device)
        paths = self._tokens[places.gather(1, best.indices)[:, :, None] + ahead]
        is_text = (paths != _END).cumprod(2).bool()
        return SharedMatches(matched=best.values, paths=paths.where(is_text, _END))

    def _candidates(self, keys: torch.Tensor) -> torch.Tensor:  # [rows, levels]
        """The last places of each context, in the order of `_CONTEXTS`; 0 where there is none."""
        keys = keys.T.contiguous()  # [levels, rows]
        ends = torch.searchsorted(self._sorted_keys, keys, right=True)
        index = ends[:, :, None] - torch.arange(1, _LATEST + 1, device=keys.device)
        index = index.flatten(1)  # [levels, rows * _LATEST]
        wanted, in_table = keys.repeat_interleave(_LATEST, 1), index.clamp_min(0)
        is_found = (self._sorted_keys.gather(1, in_table) == wanted) & (wanted != _NO_KEY)
        places = self._places.gather(1, in_table) * (is_found & (index >= 0))
        return places.view(*keys.shape, _LATEST).transpose(0, 1).flatten(1)

    def _write(self, text: FinishedText) -> None:
        tokens = text.tokens[-((self._stop - self._first) // 4) :]
        if self._next + len(tokens) + 1 > self._stop:
            self._next = self._first
        begin, end = self._next, self._next + len(tokens)
        device = self._tokens.device
        self._tokens[begin : end + 1] = upload((*tokens, _END), torch.int64, device)
        self._owners[begin : end + 1] = text.owner
        # Contexts that reach over the new end are none any more.
        stop = min(end + LONGEST_MATCH, self._tokens.shape[0])
        windows = self._tokens[begin - LONGEST_MATCH + 1 : stop].unfold(0, LONGEST_MATCH, 1)
        keys = _context_keys(windows.flip(1), self._owners[begin:stop])
        self._keys[:, begin:stop] = keys.T
        self._next = end + 1

    def _sort(self) -> None:
        ordered = self._keys.sort(dim=1, stable=True)  # of one context, later places come later
        self._sorted_keys.copy_(ordered.values)
        self._places.copy_(ordered.indices)


def _context_keys(
    last: torch.Tensor,  # [n, LONGEST_MATCH] tokens before a place, the latest first
    owners: torch.Tensor,  # [n]
) -> torch.Tensor:  # [n, levels]
    """A hash of each context and its owner; `_NO_KEY` for one that reaches over an end."""
    numbers = torch.arange(1, _CONTEXTS[-1] + 1, device=last.device)
    factors = (2 * numbers + 1) * -7046029254386353131  # odd, so no bit of a token is lost
    factors = (factors ^ (factors >> 31)) * -4658895280553007687 | 1
    used = last[:, : _CONTEXTS[-1]]
    sums = ((used + 1) * factors).cumsum(1)
    is_whole = (used != _END).cumprod(1).bool()
    sums = (sums + owners[:, None]).where(is_whole, _NO_KEY)
    return torch.stack([sums[:, length - 1] for length in _CONTEXTS], dim=1)


def _without_repeats(matched: torch.Tensor) -> torch.Tensor:  # [rows, levels * _LATEST]
    """Drop places that a longer context has found, too.

    The last places of a context that also match the next longer one are the last places of that.
    """
    *shorter, longest = matched.view(-1, len(_CONTEXTS), _LATEST).unbind(1)
    own = [level * (level < longer) for level, longer in zip(shorter, _CONTEXTS[1:], strict=True)]
    return torch.cat([*own, longest], dim=1)
