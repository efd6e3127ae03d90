"""Suffix drafting: looks up a row's own text, and the answers of requests that ended."""

from collections.abc import Sequence

import torch

from outrider.ops.tree.find_occurrences import NgramMatch
from outrider.ops.tree.suffix_paths import find_suffixes
from outrider.ops.tree.text_paths import FoundPaths
from outrider.spec.shared_text import SharedText
from outrider.spec.text_lookup import TextLookup
from outrider.spec.text_table import PredictionTable, TextTable
from outrider.step.plan import StepPlan
from outrider.wire.scheduled_batch import FinishedText, RowAdmission


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
        readers, steps = self._shared.readers(plan.decode.rows), plan.shape.tree.steps
        found = find_suffixes(text, lengths, readers, self._shared.texts, self._match, steps=steps)
        return FoundPaths(paths=found.paths, weights=found.weights, longest=found.matched.amax(1))
