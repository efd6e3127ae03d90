"""Suffix drafting: what followed the last tokens of rows, in their own texts and in finished ones.

Each path is weighted by the length of its match, and the weights of equal paths are added later. So
the score of a branch is the share of occurrences that went on with it, as the counts of a trie.
"""

from dataclasses import dataclass

import torch

from outrider.ops.compiled.why_not_compiled import is_compiled
from outrider.ops.tree.context_keys import CONTEXTS, END, LONGEST_MATCH, NO_KEY, context_keys
from outrider.ops.tree.find_occurrences import NgramMatch, find_occurrences_reference, follow
from outrider.wire.scheduled_batch import NO_OWNER

_COMPILED = "outrider.ops.compiled.suffix_matches"
LATEST = 8  # places of each context that are compared
SHARED_PATHS = 8  # out of finished texts
SHORT = 4  # tokens: up to here each token more makes a match more reliable, later each doubling
WEIGHT_STEP = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTexts:
    """Texts one after another, and their places in the order of the contexts before them."""

    tokens: torch.Tensor  # [size] int64; END after every text
    owners: torch.Tensor  # [size] int64: whose text it is
    keys: torch.Tensor  # [contexts, size] int64 of `context_keys`, ascending
    places: torch.Tensor  # [contexts, size] int64 of these keys; of equal keys the latest is last


@dataclass(frozen=True, slots=True, kw_only=True)
class SuffixMatches:
    """Places where the last tokens of rows occurred before: their own, then those of others."""

    paths: torch.Tensor  # [rows, places, steps] int64: the tokens that followed; END after a text
    matched: torch.Tensor  # [rows, places] int64 tokens that match; 0 where there is no such place
    weights: torch.Tensor  # [rows, places] float32: the share of a match among all of its row


def find_suffixes(
    text: torch.Tensor,  # [rows, width] int32
    lengths: torch.Tensor,  # [rows] position of the last token
    readers: torch.Tensor,  # [rows] int64: whose finished texts a row may read
    texts: StoredTexts,
    match: NgramMatch,
    *,
    steps: int,
) -> SuffixMatches:
    """The longest matches of every row."""
    if is_compiled(text, _COMPILED):
        from outrider.ops.tree.suffix_paths_compiled import find_suffixes_compiled

        return find_suffixes_compiled(text, lengths, readers, texts, match, steps=steps)
    return find_suffixes_reference(text, lengths, readers, texts, match, steps=steps)


def find_suffixes_reference(
    text: torch.Tensor,
    lengths: torch.Tensor,
    readers: torch.Tensor,
    texts: StoredTexts,
    match: NgramMatch,
    *,
    steps: int,
) -> SuffixMatches:
    """The same in plain torch."""
    last = _tokens_before(text, lengths[:, None]).squeeze(1)  # [rows, LONGEST_MATCH]
    own = find_occurrences_reference(text, lengths, match)
    longer = _num_equal(_tokens_before(text, own.ends), last) * (own.matched > 0)
    own_paths = follow(text, own, lengths, steps)
    shared, shared_paths = _look_up(last, readers, texts, steps)
    matched = torch.cat([longer, shared], dim=1)
    paths = torch.cat([own_paths, shared_paths], dim=1)
    return SuffixMatches(paths=paths, matched=matched, weights=_weigh(matched))


def _tokens_before(
    text: torch.Tensor,  # [rows, width]
    ends: torch.Tensor,  # [rows, num] positions
) -> torch.Tensor:  # [rows, num, LONGEST_MATCH] int64
    """The tokens up to each position, the last one first; END before the text."""
    back = torch.arange(LONGEST_MATCH, device=text.device)
    index = ends[:, :, None] - back
    tokens = text.gather(1, index.clamp_min(0).flatten(1)).view_as(index).long()
    return tokens.masked_fill(index < 0, END)


def _num_equal(
    tokens: torch.Tensor,  # [rows, num, LONGEST_MATCH]
    last: torch.Tensor,  # [rows, LONGEST_MATCH]
) -> torch.Tensor:  # [rows, num]
    """How many tokens in a row are the last tokens of the text."""
    return ((tokens == last[:, None]) & (tokens != END)).cumprod(2).sum(2)


def _look_up(
    last: torch.Tensor,  # [rows, LONGEST_MATCH]
    readers: torch.Tensor,  # [rows]
    texts: StoredTexts,
    steps: int,
) -> tuple[torch.Tensor, torch.Tensor]:  # matched [rows, places], paths [rows, places, steps]
    """The longest matches in finished texts that the rows may read, and what followed there."""
    places = _candidates(context_keys(last, readers), texts)  # [rows, contexts * LATEST]
    back = torch.arange(LONGEST_MATCH, device=last.device)
    stored = texts.tokens[(places[:, :, None] - back).clamp_min(0)]
    matched = _num_equal(stored, last)
    is_allowed = (texts.owners[places] == readers[:, None]) & (readers != NO_OWNER)[:, None]
    matched = _without_repeats(matched * is_allowed)
    best, order = matched.sort(dim=1, descending=True, stable=True)
    ahead = torch.arange(1, steps + 1, device=last.device)
    paths = texts.tokens[places.gather(1, order[:, :SHARED_PATHS])[:, :, None] + ahead]
    is_text = (paths != END).cumprod(2).bool()
    return best[:, :SHARED_PATHS], paths.where(is_text, END)


def _candidates(keys: torch.Tensor, texts: StoredTexts) -> torch.Tensor:  # keys [rows, contexts]
    """The last places of each context, in the order of CONTEXTS; 0 where there is none."""
    keys = keys.T.contiguous()  # [contexts, rows]
    ends = torch.searchsorted(texts.keys, keys, right=True)
    index = ends[:, :, None] - torch.arange(1, LATEST + 1, device=keys.device)
    index = index.flatten(1)  # [contexts, rows * LATEST]
    wanted, in_table = keys.repeat_interleave(LATEST, 1), index.clamp_min(0)
    is_found = (texts.keys.gather(1, in_table) == wanted) & (wanted != NO_KEY)
    places = texts.places.gather(1, in_table) * (is_found & (index >= 0))
    return places.view(*keys.shape, LATEST).transpose(0, 1).flatten(1)


def _without_repeats(matched: torch.Tensor) -> torch.Tensor:  # [rows, contexts * LATEST]
    """Drop places that a longer context has found, too.

    The last places of a context that also match the next longer one are the last places of that.
    """
    *shorter, longest = matched.view(-1, len(CONTEXTS), LATEST).unbind(1)
    own = [level * (level < longer) for level, longer in zip(shorter, CONTEXTS[1:], strict=True)]
    return torch.cat([*own, longest], dim=1)


def _weigh(matched: torch.Tensor) -> torch.Tensor:  # [rows, num] -> [rows, num] float32
    """The share of each match among all of its row; the weights of a row add up to 1, or to 0."""
    length = matched.float()
    level = torch.where(length > SHORT, SHORT + (length / SHORT).log2(), length)
    weights = float(WEIGHT_STEP) ** (level - level.amax(1, keepdim=True)) * (matched > 0)
    return weights / weights.sum(1, keepdim=True).clamp_min(1e-9)
