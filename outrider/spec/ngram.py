"""Drafts without a model: what followed the last tokens where they stood in the text before.

The text is on the device, so the lookup is part of the step and no length is read on the host.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from outrider.models.draft import Taps
from outrider.plan.plan import ChunkRows, StepPlan, UniformRows
from outrider.plan.shape import StepShape
from outrider.plan.tree import DraftTree
from outrider.spec.drafter import Outcome, single_node
from outrider.spec.grow import Level, select
from outrider.spec.history import TextTable
from outrider.step.rows import RowTable
from outrider.wire.batch import RowAdmission
from outrider.wire.worker import DraftFacts

OCCURRENCES = 16  # that compete in a tree
_STEP_COST = -math.log(0.8)  # a draft that was right so far goes on being right this often


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """How many of the last tokens must have stood together before, and how many may count."""

    least: int
    most: int


class NgramDrafter:
    """Owns the text of every row."""

    def __init__(
        self,
        facts: DraftFacts,
        *,
        match: Match,
        rows: int,
        largest: StepShape,
        page_size: int,
        device: torch.device,
    ) -> None:
        self._facts = facts
        self._match = match
        self._page_size = page_size
        reach = largest.pages * page_size
        self._text = TextTable(rows=rows, reach=reach, margin=match.most - 1, device=device)

    @property
    def facts(self) -> DraftFacts:
        return self._facts

    @property
    def taps(self) -> Taps:
        return Taps()

    def bind(self, shape: StepShape, uniform: UniformRows, chunk: ChunkRows) -> Any:
        del shape, uniform, chunk
        return ()

    def admit(self, admissions: Sequence[RowAdmission]) -> None:
        self._text.admit(admissions)

    def propose(self, plan: StepPlan, table: RowTable) -> DraftTree:
        """Several continuations make a tree; a row that finds none proposes node 0 alone."""
        tree, uniform = plan.shape.tree, plan.uniform
        root = table.last_tokens.index_select(0, uniform.rows)
        if tree.nodes == 1 or not tree.steps:
            return single_node(root)
        # The pages that attention may read bound the text of every row of the step.
        text = self._text.read(uniform.rows, plan.shape.pages * self._page_size)
        ends = find_occurrences(
            text, uniform.lengths, self._match, OCCURRENCES if tree.topk > 1 else 1
        )
        paths = follow(text[:, self._match.most - 1 :], ends, uniform.lengths, tree.steps)
        return select(root, grow(paths, ends >= 0, uniform.budgets), uniform.budgets, tree)

    def observe(self, plan: StepPlan, outcome: Outcome, table: RowTable) -> None:
        """Append what was emitted. Past the kept drafts that is noise, which nobody reads."""
        del table
        uniform, chunk, emitted = plan.uniform, plan.chunk, outcome.verdict.emitted
        ahead = torch.arange(1, emitted.shape[1] + 1, device=emitted.device)
        self._text.write(uniform.rows, uniform.lengths[:, None] + ahead, emitted)
        # Inside a prompt the next token is known already and must stay.
        is_end = (chunk.followers < 0).long()
        position = (chunk.starts + chunk.counts) * is_end
        self._text.write(chunk.rows * is_end, position[:, None], outcome.chunk_choice[:, None])


def find_occurrences(
    text: torch.Tensor,  # [rows, match.most - 1 + width] as `TextTable` reads it
    lengths: torch.Tensor,  # [rows] position of the last token
    match: Match,
    count: int,
) -> torch.Tensor:  # [rows, at most count] where each one ends, best first, -1 for none
    """Earlier places of the last tokens: the longest first, of equally long ones the latest.

    Latest, because what a text said last is what it repeats: a model that copies, counts or loops
    continues the latest copy of its own, edits included.
    """
    margin = match.most - 1
    width = text.shape[1] - margin
    back = torch.arange(match.most, device=text.device)
    last = text.gather(1, margin + lengths[:, None] - back)  # [rows, most] latest token first
    is_equal = text[:, margin:] == last[:, :1]  # [rows, width]
    num_equal = is_equal.int()
    for i in range(1, match.most):
        is_equal = is_equal & (text[:, margin - i : -i] == last[:, i : i + 1])
        num_equal = num_equal + is_equal
    position = torch.arange(width, device=text.device)
    is_earlier = position < lengths[:, None]
    rank = torch.where(is_earlier & (num_equal >= match.least), num_equal * width + position, -1)
    best = rank.topk(min(count, width), dim=1).values
    return torch.where(best < 0, -1, best % width)


def follow(
    text: torch.Tensor,  # [rows, width]
    ends: torch.Tensor,  # [rows, occurrences]
    lengths: torch.Tensor,  # [rows]
    steps: int,
) -> torch.Tensor:  # [rows, occurrences, steps]
    """What came after each occurrence.

    One that ends `p` before the last token is followed by `p` known tokens. They are read in a
    circle: had the text a period, that would be it.
    """
    period = (lengths[:, None] - ends).clamp_min(1)[:, :, None]
    step = torch.arange(steps, device=text.device)
    index = (ends + 1)[:, :, None] + step % period
    return text.gather(1, index.flatten(1)).view_as(index).long()


def grow(
    paths: torch.Tensor,  # [rows, occurrences, steps]
    is_found: torch.Tensor,  # [rows, occurrences]
    budgets: torch.Tensor,  # [3, rows]
) -> list[Level]:
    """The paths as one tree: equal beginnings are one branch, as likely as all of them together.

    Each occurrence counts half of the one before it, so the first outweighs all others, and a
    chain follows the first alone.
    """
    num, steps = paths.shape[1:]
    order = torch.arange(num, device=paths.device)
    # Whether two paths are the same up to and including a step, and up to the one before it.
    same = (paths[:, :, None] == paths[:, None]).cumprod(3)  # [rows, num, num, steps]
    same_parent = torch.nn.functional.pad(same[..., :-1], (1, 0), value=1)
    first = same.argmax(2)  # [rows, num, steps] the path that a branch is named after
    is_first = first == order[:, None]
    weight = is_found * 0.5**order  # [rows, num]
    mass = (same * weight[:, None, :, None]).sum(2)  # [rows, num, steps]
    is_before = is_first[:, None] & (order[:, None] < first[:, :, None])
    num_before = (is_before & same_parent.bool()).sum(2)  # better children of the same parent
    depth = torch.arange(1, steps + 1, device=paths.device)
    own_steps, own_topk, _ = budgets[:, :, None, None]
    is_allowed = (num_before < own_topk).cumprod(2).bool() & (depth <= own_steps) & is_first
    scores = torch.where(is_allowed, mass.log() - _STEP_COST * depth, float("-inf"))
    return [
        Level(
            scores=scores[:, :, step],
            tokens=paths[:, :, step],
            parents=(step - 1) * num + first[:, :, step - 1]
            if step
            else torch.full_like(first[:, :, 0], -1),
        )
        for step in range(steps)
    ]
