"""Drafts without a model: what followed the last tokens where they stood in the text before.

The text is on the device, so the lookup is part of the step and no length is read on the host.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

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

_OCCURRENCES = 16  # that compete in a tree
_STEP_COST = -math.log(0.8)  # a draft that was right so far goes on being right this often


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """How many of the last tokens must have stood together before, and how many are compared."""

    least: int
    most: int


class NgramDrafter:
    """Owns the text it looks into."""

    def __init__(self, facts: DraftFacts, *, text: TextTable, match: Match, page_size: int) -> None:
        self._facts = facts
        self._text = text
        self._match = match
        self._page_size = page_size

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
        """Continuations that compete make a tree; a row that finds none proposes nothing."""
        tree, uniform = plan.shape.tree, plan.uniform
        root = table.last_tokens.index_select(0, uniform.rows)
        if tree.nodes == 1 or not tree.steps:
            return single_node(root)
        # No row of the step is longer than the pages that attention may read.
        text = self._text.read(uniform.rows, plan.shape.pages * self._page_size)
        count = _OCCURRENCES if tree.topk > 1 else 1
        ends = find_occurrences(text, uniform.lengths, self._match, count)
        paths = follow(text, ends, uniform.lengths, tree.steps)
        return select(root, merge(paths, ends >= 0, uniform.budgets), uniform.budgets, tree)

    def observe(self, plan: StepPlan, outcome: Outcome, table: RowTable) -> None:
        """Append what was emitted; what lies past the kept drafts is overwritten by the next."""
        del table
        uniform, chunk, emitted = plan.uniform, plan.chunk, outcome.verdict.emitted
        ahead = torch.arange(1, emitted.shape[1] + 1, device=emitted.device)
        self._text.write(uniform.rows, uniform.lengths[:, None] + ahead, emitted)
        is_end = (chunk.followers < 0).long()  # inside a prompt the next token is known and stays
        position = (chunk.starts + chunk.counts) * is_end
        self._text.write(chunk.rows * is_end, position[:, None], outcome.chunk_choice[:, None])


def find_occurrences(
    text: torch.Tensor,  # [rows, width]
    lengths: torch.Tensor,  # [rows] position of the last token
    match: Match,
    count: int,
) -> torch.Tensor:  # [rows, at most count] position of each one's last token, -1 for none
    """Where the last tokens stood before: the longest match first, then the latest."""
    width, margin = text.shape[1], match.most - 1
    padded = functional.pad(text, (margin, 0), value=-1)  # a comparison may run off the text
    back = torch.arange(match.most, device=text.device)
    last = padded.gather(1, margin + lengths[:, None] - back)  # [rows, most] the last one first
    is_equal = text == last[:, :1]  # [rows, width]
    num_equal = is_equal.int()
    for i in range(1, match.most):
        is_equal = is_equal & (padded[:, margin - i : margin - i + width] == last[:, i : i + 1])
        num_equal = num_equal + is_equal
    position = torch.arange(width, device=text.device)
    is_match = (num_equal >= match.least) & (position < lengths[:, None])
    rank = torch.where(is_match, num_equal * width + position, -1)
    best = rank.topk(min(count, width), dim=1).values
    return torch.where(best < 0, -1, best % width)


def follow(
    text: torch.Tensor,  # [rows, width]
    ends: torch.Tensor,  # [rows, occurrences]
    lengths: torch.Tensor,  # [rows]
    steps: int,
) -> torch.Tensor:  # [rows, occurrences, steps]
    """The tokens after each occurrence; where the text ends, its last period begins again.

    An occurrence that ends `p` tokens before the end of the text makes `p` its period.
    """
    period = (lengths[:, None] - ends).clamp_min(1)[:, :, None]
    step = torch.arange(steps, device=text.device)
    index = (ends + 1)[:, :, None] + step % period
    return text.gather(1, index.flatten(1)).view_as(index).long()


def merge(
    paths: torch.Tensor,  # [rows, occurrences, steps]
    is_found: torch.Tensor,  # [rows, occurrences]
    budgets: torch.Tensor,  # [3, rows]
) -> list[Level]:
    """The tree of all paths. A branch is named after the first path in it and scored by them all.

    Each path weighs half of the one before it: the first outweighs all others, and is the chain.
    """
    num, steps = paths.shape[1:]
    order = torch.arange(num, device=paths.device)
    same = (paths[:, :, None] == paths[:, None]).cumprod(3)  # [rows, num, num, steps] so far
    first = same.argmax(2)  # [rows, num, steps]
    is_first = first == order[:, None]
    mass = (same * (is_found * 0.5**order)[:, None, :, None]).sum(2)  # [rows, num, steps]
    same_parent = functional.pad(same[..., :-1], (1, 0), value=1).bool()
    is_rival = same_parent & is_first[:, None] & (order[:, None] < first[:, :, None])
    own_steps, own_topk, _ = budgets[:, :, None, None]
    depth = torch.arange(1, steps + 1, device=paths.device)
    is_allowed = (is_rival.sum(2) < own_topk).cumprod(2).bool() & (depth <= own_steps)
    scores = torch.where(is_allowed & is_first, mass.log() - _STEP_COST * depth, float("-inf"))
    number = functional.pad(first[..., :-1] + num * (depth[:-1] - 1), (1, 0), value=-1)
    return [
        Level(scores=level, tokens=tokens, parents=parents)
        for level, tokens, parents in zip(
            scores.unbind(2), paths.unbind(2), number.unbind(2), strict=True
        )
    ]
