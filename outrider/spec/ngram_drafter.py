"""Drafts without a model: the tokens that followed earlier occurrences of the last tokens.

The text is on the device, so the lookup is part of the step and no length is read on the host.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from outrider.ops.tree.acceptance_table import KINDS
from outrider.ops.tree.candidates import Candidates
from outrider.ops.tree.chain import single_node
from outrider.ops.tree.draft_tree import DraftTree, StepOutcome
from outrider.spec.choose_tree import TreeChooser
from outrider.spec.drafter import ModelessDrafter
from outrider.spec.text_table import PredictionTable, TextTable
from outrider.step.plan import StepPlan
from outrider.step.row_table import RowTable
from outrider.wire.runner_facts import DraftFacts
from outrider.wire.scheduled_batch import RowAdmission

# Measured offline on 120 texts of SmolLM2-135M (summaries, code, maths, chat, greedy and sampled):
# more occurrences, other costs and longer matches change the accept length by less than 1%.
_OCCURRENCES = 8  # compared at most
_STEP_COST = -math.log(0.8)  # the next draft of a correct path is correct about this often
_AGE_COST = 1e-5  # of equally likely branches, the one from the later text wins


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


class NgramDrafter(ModelessDrafter):
    """Owns the text that it searches."""

    def __init__(
        self,
        facts: DraftFacts,
        *,
        text: TextTable,
        predictions: PredictionTable,
        match: NgramMatch,
        page_size: int,
        chooser: TreeChooser,
    ) -> None:
        super().__init__(facts)
        self._chooser = chooser
        self._text = text
        self._predictions = predictions
        self._match = match
        self._page_size = page_size

    def admit(self, admissions: Sequence[RowAdmission]) -> None:
        self._text.admit(admissions)
        self._predictions.admit(admissions)

    def propose(self, plan: StepPlan, table: RowTable) -> DraftTree:
        """A tree of all continuations found; a row without a match proposes nothing."""
        tree, decode = plan.shape.tree, plan.decode
        root = table.last_tokens.index_select(0, decode.rows)
        if tree.nodes == 1 or not tree.steps:
            return single_node(root)
        found = self._search(plan, *self._known_text(plan))
        candidates = merge(found.paths, found.weights, decode.budgets)
        # A longer match is right more often, whatever its weight among the matches of its row.
        return self._chooser.choose(
            plan, root, candidates, lambda: found.longest.clamp_max(KINDS - 1).long()
        )

    def _known_text(self, plan: StepPlan) -> tuple[torch.Tensor, torch.Tensor]:
        """The text of each row [rows, width], and the position of its last token [rows]."""
        # No row of the step is longer than the pages that attention may read.
        width = plan.shape.pages * self._page_size
        text, lengths = self._text.read(plan.decode.rows, width), plan.decode.lengths
        if plan.shape.sampling_flags.predictions:  # as if the text began with them
            text = torch.cat([self._predictions.read(plan.decode.rows), text], dim=1)
            lengths = lengths + self._predictions.width
        return text, lengths

    def _search(self, plan: StepPlan, text: torch.Tensor, lengths: torch.Tensor) -> FoundPaths:
        """Paths out of the row's own text."""
        occurrences = find(text, lengths, self._match)
        return FoundPaths(
            paths=follow(text, occurrences, lengths, plan.shape.tree.steps),
            weights=weigh(occurrences),
            longest=occurrences.matched[:, 0],
        )

    def observe(self, plan: StepPlan, outcome: StepOutcome, table: RowTable) -> None:
        """Append the emitted tokens. The next step overwrites those past the accepted drafts."""
        del table
        self._chooser.learn(plan, outcome.verify_result)
        decode, chunk, emitted = plan.decode, plan.chunk, outcome.verify_result.emitted
        ahead = torch.arange(1, emitted.shape[1] + 1, device=emitted.device)
        self._text.write(decode.rows, decode.lengths[:, None] + ahead, emitted)
        is_end = (chunk.followers < 0).long()  # inside a prompt the next token is known
        position = (chunk.starts + chunk.counts) * is_end
        self._text.write(chunk.rows * is_end, position[:, None], outcome.chunk_choice[:, None])


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
    best = rank.topk(min(_OCCURRENCES, width), dim=1).values
    return Occurrences(ends=best % width, matched=best // width)


def weigh(occurrences: Occurrences) -> torch.Tensor:  # [rows, occurrences]
    """The weight of each occurrence: a longer match weighs more than all shorter ones together."""
    shorter = occurrences.matched[:, :1] - occurrences.matched
    return torch.where(occurrences.matched > 0, (1 / _OCCURRENCES) ** shorter, 0.0)


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


def merge(
    paths: torch.Tensor,  # [rows, occurrences, steps] -1 where a text ended
    weights: torch.Tensor,  # [rows, occurrences]
    budgets: torch.Tensor,  # [3, rows]
) -> Candidates:
    """The tree of all paths. The weight of a branch is the sum over all paths that begin with it.

    A branch has the number of the first of these paths, so paths that agree share their nodes.
    """
    num, steps = paths.shape[1:]
    order = torch.arange(num, device=paths.device)
    depth = torch.arange(1, steps + 1, device=paths.device)
    same = (paths[:, :, None] == paths[:, None]).cumprod(3)  # [rows, num, num, steps] so far
    first = same.argmax(2)  # [rows, num, steps]
    is_first = first == order[:, None]
    weight = (same * weights[:, None, :, None]).sum(2)  # [rows, num, steps]
    scores = weight.log() - _STEP_COST * depth - _AGE_COST * first
    same_parent = functional.pad(same[..., :-1], (1, 0), value=1)
    num_better = (same_parent & is_first[:, None] & (scores[:, None] > scores[:, :, None])).sum(2)
    own_steps, own_topk, _ = budgets[:, :, None, None]
    is_known = (paths >= 0).cumprod(2).bool()  # a finished text has no next token
    is_allowed = (num_better < own_topk).cumprod(2).bool() & (depth <= own_steps) & is_first
    is_allowed = is_allowed & is_known
    scores = torch.where(is_allowed, scores, float("-inf"))
    parents = functional.pad(first[..., :-1] + num * (depth[:-1] - 1), (1, 0), value=-1)
    # Level by level: [rows, num, steps] -> [rows, steps * num].
    scores, tokens, parents = (x.transpose(1, 2).flatten(1) for x in (scores, paths, parents))
    return Candidates(scores=scores, tokens=tokens, parents=parents)
