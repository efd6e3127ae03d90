"""The candidates of a draft tree from the states of a block: the best nodes that its slots propose.

Where logits depend on the slot alone, all nodes of a depth have the same children, which are known
at once. Where they depend on the token before, a tree grows level by level.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate

import torch

from outrider.models.block_model import AnyBlockModel
from outrider.ops.sampling.top_tokens import TopTokens
from outrider.ops.tree.best_tree import best_tree
from outrider.ops.tree.candidates import Candidates, SlotTokens, TreeLevel
from outrider.ops.tree.draft_hidden_states import root_frontier
from outrider.ops.tree.grow_level import grow_level
from outrider.sampling.draft_topk import likely_samples, likely_tokens
from outrider.sampling.sampling_table import SamplingTable
from outrider.step.plan import StepPlan
from outrider.wire.draft_budget import Budget

_MOST_AT_ONCE = 256  # rows of logits
_MOST_CANDIDATES = 4096  # of a row, which one program on a GPU selects from


class SlotProposer:
    """Reads the states of a block model, and the noise of the rows that it drafts for."""

    def __init__(self, model: AnyBlockModel, sampling: SamplingTable) -> None:
        self._model = model
        self._sampling = sampling

    def candidates(
        self,
        plan: StepPlan,
        root: torch.Tensor,  # [rows] the last tokens
        states: torch.Tensor,  # [rows, steps, width] of the slots that draft
    ) -> Candidates:
        """The nodes that may join the tree of each row; a parent comes before its children."""
        tree = plan.shape.tree
        if self._model.is_conditional and tree.topk > 1:
            return self._grow(plan, root, states)
        find = self._chain if self._model.is_conditional else self._all_slots
        slots = find(plan, root, states)
        return best_tree(slots, plan.decode.budgets, num_drafts=tree.nodes - 1)

    def _all_slots(self, plan: StepPlan, root: torch.Tensor, states: torch.Tensor) -> SlotTokens:
        """The best tokens of every slot."""
        (rows, steps, _), topk = states.shape, plan.shape.tree.topk
        at_once, parts = steps if rows * steps <= _MOST_AT_ONCE else 1, []
        for first in range(0, steps, at_once):
            slots = states[:, first : first + at_once]
            logits = self._model.logits(slots, self._model.block.first + first).flatten(0, 1)
            parts.append(self._best(plan, logits, first=first, slots=slots.shape[1]))
        tokens = torch.cat([part.tokens.view(rows, -1, topk) for part in parts], 1)
        logprobs = torch.cat([part.logprobs.view(rows, -1, topk) for part in parts], 1)
        chances = self._model.confidence(states.flatten(0, 1), root.repeat_interleave(steps))
        if chances is not None:
            logprobs = logprobs + chances.view(rows, steps, 1)
        return SlotTokens(logprobs=logprobs, tokens=tokens)

    def _chain(self, plan: StepPlan, root: torch.Tensor, states: torch.Tensor) -> SlotTokens:
        """The best token of every slot after that of the slot before."""
        found, before = [], root
        for step, logits in enumerate(self._logits(states)):
            found.append(self._after(plan, logits, states[:, step], before, step=step))
            before = found[-1].tokens.squeeze(1)
        return SlotTokens(
            logprobs=torch.stack([each.logprobs for each in found], 1),
            tokens=torch.stack([each.tokens for each in found], 1),
        )

    def _grow(self, plan: StepPlan, root: torch.Tensor, states: torch.Tensor) -> Candidates:
        """The children of the best nodes of each level."""
        tree, decode = replace(plan.shape.tree, steps=states.shape[1]), plan.decode
        widths = tip_widths(tree, len(root))
        borders = [0, *accumulate(width * tree.topk for width in widths)]
        tips, candidates = root_frontier(decode, root), _room(root, borders[-1])
        for step, logits in enumerate(self._logits(states)):
            before = tips.nodes.tokens  # [rows, tips]
            level = TreeLevel(
                depth=step + 1,
                first_number=borders[step],
                first_node=0,
                num_tips=widths[step + 1] if step + 1 < tree.steps else 0,
                is_wide=True,
            )
            tips = grow_level(
                tips,
                self._after_each(plan, logits, states[:, step], before, step=step),
                decode,
                candidates=_part(candidates, slice(borders[step], borders[step + 1])),
                level=level,
            )
        return candidates

    def _after_each(
        self,
        plan: StepPlan,
        logits: torch.Tensor,  # [rows, draft_vocab]
        states: torch.Tensor,  # [rows, width]
        before: torch.Tensor,  # [rows, tips]
        *,
        step: int,
    ) -> TopTokens:  # of n = rows * tips
        num = before.shape[1]
        logits, states = logits.repeat_interleave(num, 0), states.repeat_interleave(num, 0)
        return self._after(plan, logits, states, before.flatten(), step=step)

    def _after(
        self,
        plan: StepPlan,
        logits: torch.Tensor,  # [rows * tips, draft_vocab] of the slot alone
        states: torch.Tensor,  # [rows * tips, width]
        before: torch.Tensor,  # [rows * tips]
        *,
        step: int,
    ) -> TopTokens:
        """The best tokens of a slot after each token before."""
        top = self._best(plan, logits + self._model.bias(states, before), first=step, slots=1)
        chances = self._model.confidence(states, before)
        if chances is None:
            return top
        return TopTokens(logprobs=top.logprobs + chances[:, None], tokens=top.tokens)

    def _logits(
        self, states: torch.Tensor
    ) -> Iterator[torch.Tensor]:  # [rows, steps, width] -> [rows, draft_vocab] of each step
        """Logits of all slots at once, so that lm_head is read once, unless they take much room."""
        model, first, (rows, steps, _) = self._model, self._model.block.first, states.shape
        if rows * steps <= _MOST_AT_ONCE:
            yield from model.logits(states, first).unbind(1)
            return
        for step in range(steps):
            yield model.logits(states[:, step : step + 1], first + step).squeeze(1)

    def _best(
        self,
        plan: StepPlan,
        logits: torch.Tensor,  # [n, draft_vocab]: of some slots of each row, or of some nodes
        *,
        first: int,  # step of the first slot
        slots: int,
    ) -> TopTokens:  # [n, topk]
        decode, ids, topk = plan.decode, self._model.target_ids, plan.shape.tree.topk
        if not plan.shape.sampling_flags.noise:
            return likely_tokens(logits, ids, topk)
        each = logits.shape[0] // max(len(decode.rows), 1)
        steps = torch.arange(first, first + slots, device=ids.device).expand(
            len(decode.rows), each // slots, slots
        )
        return likely_samples(
            logits,
            ids,
            topk,
            table=self._sampling,
            rows=decode.rows.repeat_interleave(each),
            positions=(decode.lengths[:, None, None] + 1 + steps).flatten(),
        )


def tip_widths(tree: Budget, rows: int) -> Sequence[int]:
    """Nodes of each depth whose children are looked at, node 0 first.

    A node with a child leaves room for so many others of its depth, so no more can be in the best
    tree. Where the logits or the children of all of them take too much room, only the best grow.
    """
    most = max(tree.topk, _MOST_AT_ONCE // max(rows, 1))
    most = min(most, _MOST_CANDIDATES // (tree.topk * tree.steps))
    widths = [1]
    for depth in range(1, tree.steps):
        widths.append(max(1, min(widths[-1] * tree.topk, tree.nodes - 1 - depth, most)))
    return widths


def _room(root: torch.Tensor, width: int) -> Candidates:  # root [rows]
    """Memory for all candidates; each level is written when it grows."""
    size = root.shape[0], width
    return Candidates(
        scores=root.new_empty(size, dtype=torch.float32),
        tokens=root.new_empty(size),
        parents=root.new_empty(size),
    )


def _part(candidates: Candidates, numbers: slice) -> Candidates:
    """The candidates of one level."""
    return Candidates(
        scores=candidates.scores[:, numbers],
        tokens=candidates.tokens[:, numbers],
        parents=candidates.parents[:, numbers],
    )
