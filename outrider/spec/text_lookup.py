"""Looks the last tokens of each row up in its own text: what followed them where they occurred.

The text is on the device, so the lookup is part of the step and no length is read on the host.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from outrider.ops.tree.draft_tree import StepOutcome
from outrider.spec.text_table import PredictionTable, TextTable
from outrider.step.plan import StepPlan
from outrider.wire.scheduled_batch import FinishedText, RowAdmission

# Measured offline on 120 texts of SmolLM2-135M (summaries, code, maths, chat, greedy and sampled):
# more occurrences, other costs and longer matches change the accept length by less than 1%.
OCCURRENCES = 8  # compared at most


@dataclass(frozen=True, slots=True, kw_only=True)
class NgramMatch:
    """How many of the last tokens must match, and how many are compared."""

    least: int  # at least 1
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Occurrences:
    """Earlier occurrences of a text's last tokens: longest match first, of equals the latest."""

    ends: torch.Tensor  # [rows, occurrences] position of the last token of the match
    matched: torch.Tensor  # [rows, occurrences] tokens that match; 0 where there is no occurrence


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPaths:
    """What followed the last tokens of each row where they occurred before."""

    paths: torch.Tensor  # [rows, num, steps] tokens; -1 where a text ended
    weights: torch.Tensor  # [rows, num] 0 where there is no path
    longest: torch.Tensor  # [rows] tokens of the longest match


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
        occurrences = find(text, lengths, self._match)
        return FoundPaths(
            paths=follow(text, occurrences, lengths, plan.shape.tree.steps),
            weights=weigh(occurrences),
            longest=occurrences.matched[:, 0],
        )


def find(
    text: torch.Tensor,  # [rows, width]
    lengths: torch.Tensor,  # [rows] position of the last token
    match: NgramMatch,
) -> Occurrences:
    """Earlier occurrences of the last tokens, compared one by one backwards from every position."""
    width, margin = text.shape[1], match.most - 1
    padded = functional.pad(text, (margin, 0), value=-1)  # a comparison may start before the text
    back = torch.arange(match.most, device=text.device)
    last = padded.gather(1, margin + lengths[:, None] - back)  # [rows, most] the last token first
    is_equal = text == last[:, :1]  # [rows, width]
    matched = is_equal.int()
    for i in range(1, match.most):
        is_equal = is_equal & (padded[:, margin - i : margin - i + width] == last[:, i : i + 1])
        matched = matched + is_equal
    position = torch.arange(width, device=text.device)
    is_found = (matched >= match.least) & (position < lengths[:, None])
    rank = torch.where(is_found, matched * width + position, 0)
    best = rank.topk(min(OCCURRENCES, width), dim=1).values
    return Occurrences(ends=best % width, matched=best // width)


def weigh(occurrences: Occurrences) -> torch.Tensor:  # [rows, occurrences]
    """The weight of each occurrence: a longer match weighs more than all shorter ones together."""
    shorter = occurrences.matched[:, :1] - occurrences.matched
    return torch.where(occurrences.matched > 0, (1 / OCCURRENCES) ** shorter, 0.0)


def follow(
    text: torch.Tensor,  # [rows, width]
    occurrences: Occurrences,
    lengths: torch.Tensor,  # [rows]
    steps: int,
) -> torch.Tensor:  # [rows, occurrences, steps]
    """The tokens after each occurrence. An occurrence `p` tokens back is followed by `p` tokens;
    after those they repeat, as in a text of period `p`.
    """
    period = (lengths[:, None] - occurrences.ends).clamp_min(1)[:, :, None]
    step = torch.arange(steps, device=text.device)
    index = (occurrences.ends + 1)[:, :, None] + step % period
    return text.gather(1, index.flatten(1)).view_as(index).long()


@dataclass(frozen=True, slots=True, kw_only=True)
class PathTree:
    """Paths of a row as one tree: paths that begin alike share their nodes."""

    first: torch.Tensor  # [rows, num, steps] the first path that has this node
    weights: torch.Tensor  # [rows, num, steps] of all paths through this node


def join_paths(found: FoundPaths) -> PathTree:
    """The tree of all paths. The weight of a node is the sum over all paths that begin with it."""
    paths = found.paths
    same = (paths[:, :, None] == paths[:, None]).cumprod(3)  # [rows, num, num, steps] so far
    weights = (same * found.weights[:, None, :, None]).sum(2)
    return PathTree(first=same.argmax(2), weights=weights)
