"""Suffix drafting: looks up a row's own text, and the answers of requests that ended.

Each path is weighted by the length of its match, and the weights of equal paths are added. So the
score of a branch is the share of occurrences that went on with it, as the counts of a suffix trie.
"""

from collections.abc import Sequence

import torch

from outrider.ops.tree.find_occurrences import NgramMatch, find_occurrences
from outrider.ops.tree.text_paths import FoundPaths
from outrider.spec.shared_text import LONGEST_MATCH, SharedText
from outrider.spec.text_lookup import TextLookup, follow
from outrider.spec.text_table import PredictionTable, TextTable
from outrider.step.plan import StepPlan
from outrider.wire.scheduled_batch import FinishedText, RowAdmission

_SHARED_PATHS = 8
_SHORT = 4  # tokens: up to here each token more makes a match more reliable, later each doubling
_WEIGHT_STEP = 8.0


class SuffixLookup(TextLookup):
    """Owns the text of every row and the texts that ended."""

    def __init__(
        self,
        *,
        text: TextTable,
        predictions: PredictionTable,
        match: NgramMatch,
        page_size: int,
        shared: SharedText,
    ) -> None:
        super().__init__(text=text, predictions=predictions, match=match, page_size=page_size)
        self._shared = shared

    def admit(self, admissions: Sequence[RowAdmission]) -> None:
        super().admit(admissions)
        self._shared.admit(admissions)

    def remember(self, texts: Sequence[FinishedText]) -> None:
        self._shared.append(texts)

    def forget(self) -> None:
        self._shared.forget()

    def _search(self, plan: StepPlan, text: torch.Tensor, lengths: torch.Tensor) -> FoundPaths:
        """Paths out of the row's own text, then out of finished ones."""
        steps, last = plan.shape.tree.steps, tokens_before(text, lengths[:, None]).squeeze(1)
        own = find_occurrences(text, lengths, self._match)
        longer = _num_equal(tokens_before(text, own.ends), last)
        shared = self._shared.look_up(plan.decode.rows, last, steps=steps, most=_SHARED_PATHS)
        matched = torch.cat([longer * (own.matched > 0), shared.matched], dim=1)
        return FoundPaths(
            paths=torch.cat([follow(text, own, lengths, steps), shared.paths], dim=1),
            weights=weigh_matches(matched),
            longest=matched.amax(1),
        )


def tokens_before(
    text: torch.Tensor,  # [rows, width]
    ends: torch.Tensor,  # [rows, num] positions
) -> torch.Tensor:  # [rows, num, LONGEST_MATCH] int64
    """The tokens up to each position, the last one first; -1 before the text."""
    back = torch.arange(LONGEST_MATCH, device=text.device)
    index = ends[:, :, None] - back
    tokens = text.gather(1, index.clamp_min(0).flatten(1)).view_as(index).long()
    return tokens.masked_fill(index < 0, -1)


def _num_equal(
    tokens: torch.Tensor,  # [rows, num, LONGEST_MATCH]
    last: torch.Tensor,  # [rows, LONGEST_MATCH]
) -> torch.Tensor:  # [rows, num]
    """How many tokens in a row are the last tokens of the text."""
    return ((tokens == last[:, None]) & (tokens >= 0)).cumprod(2).sum(2)


def weigh_matches(matched: torch.Tensor) -> torch.Tensor:  # [rows, num] -> [rows, num] float32
    """The share of each match among all of its row; the weights of a row add up to 1, or to 0."""
    length = matched.float()
    level = torch.where(length > _SHORT, _SHORT + (length / _SHORT).log2(), length)
    weights = _WEIGHT_STEP ** (level - level.amax(1, keepdim=True)) * (matched > 0)
    return weights / weights.sum(1, keepdim=True).clamp_min(1e-9)
