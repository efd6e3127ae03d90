"""Looks the last tokens of each row up in its own text: what followed them where they occurred.

The text is on the device, so the lookup is part of the step and no length is read on the host.
"""

from collections.abc import Sequence

import torch

from outrider.ops.tree.draft_tree import StepOutcome
from outrider.ops.tree.find_occurrences import (
    OCCURRENCES,
    NgramMatch,
    Occurrences,
    find_occurrences,
    follow,
)
from outrider.ops.tree.text_paths import FoundPaths
from outrider.spec.text_table import PredictionTable, TextTable
from outrider.step.plan import StepPlan
from outrider.wire.scheduled_batch import FinishedText, RowAdmission


class TextLookup:
    """Owns the text that it searches."""

    def __init__(
        self,
        *,
        text: TextTable,
        predictions: PredictionTable,
        match: NgramMatch,
        page_size: int,
    ) -> None:
        self._text = text
        self._predictions = predictions
        self._match = match
        self._page_size = page_size

    def admit(self, admissions: Sequence[RowAdmission]) -> None:
        self._text.admit(admissions)
        self._predictions.admit(admissions)

    def remember(self, texts: Sequence[FinishedText]) -> None:
        pass

    def forget(self) -> None:
        pass

    def append(self, plan: StepPlan, outcome: StepOutcome) -> None:
        """Append the emitted tokens. The next step overwrites those past the accepted drafts."""
        decode, chunk, emitted = plan.decode, plan.chunk, outcome.verify_result.emitted
        ahead = torch.arange(1, emitted.shape[1] + 1, device=emitted.device)
        self._text.write(decode.rows, decode.lengths[:, None] + ahead, emitted)
        is_end = (chunk.followers < 0).long()  # inside a prompt the next token is known
        position = (chunk.starts + chunk.counts) * is_end
        self._text.write(chunk.rows * is_end, position[:, None], outcome.chunk_choice[:, None])

    def search(self, plan: StepPlan) -> FoundPaths:
        """What followed the last tokens of every decode row; a row without a match has no path."""
        # No row of the step is longer than the pages that attention may read.
        width = plan.shape.pages * self._page_size
        text, lengths = self._text.read(plan.decode.rows, width), plan.decode.lengths
        if plan.shape.sampling_flags.predictions:  # as if the text began with them
            text = torch.cat([self._predictions.read(plan.decode.rows), text], dim=1)
            lengths = lengths + self._predictions.width
        return self._search(plan, text, lengths)

    def _search(
        self,
        plan: StepPlan,
        text: torch.Tensor,  # [rows, width]
        lengths: torch.Tensor,  # [rows] position of the last token
    ) -> FoundPaths:
        occurrences = find_occurrences(text, lengths, self._match)
        return FoundPaths(
            paths=follow(text, occurrences, lengths, plan.shape.tree.steps),
            weights=weigh(occurrences),
            longest=occurrences.matched[:, 0],
        )


def weigh(occurrences: Occurrences) -> torch.Tensor:  # [rows, occurrences]
    """The weight of each occurrence: a longer match weighs more than all shorter ones together."""
    shorter = occurrences.matched[:, :1] - occurrences.matched
    return torch.where(occurrences.matched > 0, (1 / OCCURRENCES) ** shorter, 0.0)
