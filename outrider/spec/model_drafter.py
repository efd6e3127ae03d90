"""The draft loop of every draft model, head or whole: it proposes trees and catches up."""

from dataclasses import replace

import torch

from outrider.kv.kv_pool import ModelPool
from outrider.models.draft_model import AnyDraftModel
from outrider.ops.graph_break import graph_break
from outrider.ops.sampling.top_tokens import TopTokens
from outrider.ops.tree.candidates import Candidates, Frontier
from outrider.ops.tree.chain import chain, single_node
from outrider.ops.tree.draft_hidden_states import (
    gather_accepted,
    parent_hidden_states,
    start_round,
    store_hidden_states,
)
from outrider.ops.tree.draft_tree import DraftTree, StepOutcome
from outrider.ops.tree.plan_rows import ChunkRows, DecodeRows
from outrider.sampling.draft_topk import likely_samples, likely_tokens
from outrider.sampling.sampling_table import SamplingTable
from outrider.spec.choose_tree import TreeChooser
from outrider.spec.draft_plans import DraftPlanner, DraftPlans
from outrider.spec.draft_slots import DraftSlots
from outrider.spec.drafter import BaseDrafter
from outrider.spec.grow_tree import grow, room_for
from outrider.spec.postponed_steps import PostponedSteps, can_postpone
from outrider.step.attention_backend import AttentionPlanner
from outrider.step.fill_plan import fill, fill_adapters, place_queries
from outrider.step.plan import StepPlan
from outrider.step.row_table import RowTable
from outrider.step.shape import StepShape
from outrider.wire.runner_facts import DraftFacts


class ModelDrafter(BaseDrafter):
    """Owns the draft model's KV and, per row, the hidden state with which a round can begin.

    The draft model's KV covers every decided token when a round begins. What only a round needs is
    computed when it begins, so a step that drafts nothing does not pay for it.
    """

    def __init__(
        self,
        model: AnyDraftModel,
        *,
        kv: ModelPool,
        attention: AttentionPlanner,
        sampling: SamplingTable,
        facts: DraftFacts,
        largest: StepShape,
        chooser: TreeChooser,
        may_postpone: bool,  # nothing but steps writes pages: else it could come too early
    ) -> None:
        super().__init__(facts, model.facts.aux_layers)
        self._model = model
        self._kv = kv
        self._attention = attention
        self._sampling = sampling
        rows, device = sampling.seed.shape[0], sampling.seed.device
        width, dtype = model.facts.width, kv.layout.dtype
        self._hidden_states = torch.zeros(rows, width, dtype=dtype, device=device)
        self._planner = DraftPlanner(attention, largest, device)
        self._chooser = chooser
        # None: the draft model reads every step at once.
        self._postponed: PostponedSteps | None = None
        if may_postpone and can_postpone(model.facts, device):
            self._postponed = PostponedSteps(self._read_steps)

    def bind(self, shape: StepShape, decode: DecodeRows, chunk: ChunkRows) -> DraftPlans:
        own = shape if self._model.facts.has_adapters else shape.without_adapters()
        return self._planner.bind(own, decode, chunk)

    def forget(self) -> None:
        self._hidden_states.zero_()  # padding reads row 0, which only padding overwrites
        if self._postponed is not None:
            self._postponed.drop()

    def propose(self, plan: StepPlan, table: RowTable) -> DraftTree:
        """The best nodes of all that were grown."""
        tree, decode = plan.shape.tree, plan.decode
        if tree.nodes == 1 or not tree.steps:
            return single_node(table.last_tokens.index_select(0, decode.rows))
        root, candidates = self.grow_candidates(plan, table, steps=tree.steps)
        # The noise makes a drafter sure of other tokens, so sampled rows are measured apart.
        return self._chooser.choose(plan, root, candidates, lambda: self.sampled_rows(plan))

    def sampled_rows(self, plan: StepPlan) -> torch.Tensor:  # [rows] int64
        """1 for decode rows that sample, 0 for greedy ones."""
        return self._sampling.is_sampled(plan.decode.rows)

    def grow_candidates(
        self, plan: StepPlan, table: RowTable, *, steps: int
    ) -> tuple[torch.Tensor, Candidates]:
        """Node 0 of each row [rows], and what grows from its hidden state: `steps` selections and
        `steps` - 1 forwards.
        """
        self._read_postponed(plan)
        tree, decode = replace(plan.shape.tree, steps=steps), plan.decode
        tips, states = self._start(plan, table)
        root, slots = tips.nodes.tokens.squeeze(1), DraftSlots(tree=tree)
        candidates = room_for(tree, root)
        for depth in range(1, steps + 1):
            if depth > 1:
                states = self._run_tips(plan, table, tips, states, slots.first_node(depth - 1))
            top = self._top_tokens(plan, tips, states)
            tips = grow(tips, top, decode, candidates=candidates, slots=slots, depth=depth)
        return root, candidates

    def _start(self, plan: StepPlan, table: RowTable) -> tuple[Frontier, torch.Tensor]:
        """Node 0 of every row, and the hidden state after it: [rows, 1, width]."""
        plans = _plans_of(plan)
        tips, states = start_round(
            plan.decode,
            last_tokens=table.last_tokens,
            hidden_states=self._hidden_states,
            first_lengths=plans.first.decode.lengths,
            level_lengths=plans.level.decode.lengths,
            lead=self._facts.lead,
        )
        if not self._model.facts.begins_with_forward:
            return tips, states
        root = single_node(tips.nodes.tokens.squeeze(1))
        return tips, self._run(plans.first, root, states.flatten(0, 1), table).view_as(states)

    def observe(self, plan: StepPlan, outcome: StepOutcome, table: RowTable) -> None:
        """Catch up with what the target decided, on the target's aux hidden states."""
        self._chooser.learn(plan, outcome.verify_result)
        catch_up = _plans_of(plan).catch_up
        if self._postponed is not None and _is_plain(plan.shape):
            emitted, aux = outcome.verify_result.emitted, outcome.aux_hidden_states
            graph_break(self._postponed.add, plan, emitted, aux, catch_up)
            return
        self._read_postponed(plan)
        accepted = gather_accepted(
            outcome,
            plan.decode,
            plan.chunk,
            new_lengths=catch_up.decode.lengths,
            new_tokens=catch_up.chunk.tokens,
            lead=self._facts.lead,
            lookahead=self._facts.lookahead,
        )
        after = self._catch_up(catch_up, chain(outcome.verify_result.emitted), accepted, table)
        ends = catch_up.sampled.index[catch_up.shape.num_decode_query :]
        if self._facts.lead and plan.shape.chunk.rows:
            self._store(plan, outcome, after, ends[:0])
            self._run_bonus(plan, outcome, table)
        else:
            self._store(plan, outcome, after, ends)

    def _read_postponed(self, plan: StepPlan) -> None:
        """Read the plain steps that wait, before the draft model's KV is read or written."""
        if self._postponed is not None:
            graph_break(self._postponed.read, _plans_of(plan).catch_up)

    def _read_steps(
        self, plan: StepPlan, aux_hidden_states: torch.Tensor, last_rows: torch.Tensor
    ) -> None:
        after = self._model.catch_up(plan, aux_hidden_states, self._kv, self._attention)
        self._hidden_states.index_copy_(0, last_rows, after[-last_rows.shape[0] :])

    def _run_bonus(self, plan: StepPlan, outcome: StepOutcome, table: RowTable) -> None:
        """Run the token after each chunk, for a whole model: a head reads it with the chunk."""
        bonus = _plans_of(plan).bonus
        torch.add(plan.chunk.starts, plan.chunk.counts, out=bonus.decode.lengths)
        bonus.decode.lengths.mul_(plan.chunk.rows > 0)  # padding may be longer than any table
        none = outcome.aux_hidden_states[:0]  # a whole model reads KV alone
        after = self._catch_up(bonus, single_node(outcome.chunk_choice), none, table)
        self._hidden_states.index_copy_(0, plan.chunk.rows, after)

    def _store(
        self,
        plan: StepPlan,
        outcome: StepOutcome,
        after: torch.Tensor,  # [num_query, width] of the catch-up
        chunk_ends: torch.Tensor,  # [chunk.rows] or none: the last query token of each chunk
    ) -> None:
        """Store the hidden state of the last known token of each row."""
        store_hidden_states(
            after,
            self._hidden_states,
            num_accepted=outcome.verify_result.num_accepted,
            decode_rows=plan.decode.rows,
            most_emitted=plan.shape.tree.most_emitted,
            chunk_ends=chunk_ends,
            chunk_rows=plan.chunk.rows[: chunk_ends.shape[0]],
        )

    def _run_tips(
        self,
        plan: StepPlan,
        table: RowTable,
        tips: Frontier,
        states: torch.Tensor,  # [rows, branches, width] of the frontier before
        first_node: int,
    ) -> torch.Tensor:  # [rows, topk, width]
        """The hidden states after the tips, each run on that of its parent."""
        is_chain = plan.shape.tree.topk == 1
        parents = states if is_chain else parent_hidden_states(states, tips.parent_tips)
        before = parents.flatten(0, 1)
        after = self._run(_plans_of(plan).level, tips.nodes, before, table, first_node)
        return after.view_as(parents)

    def _catch_up(
        self,
        plan: StepPlan,
        tree: DraftTree,
        aux_hidden_states: torch.Tensor,  # [num_query, aux]
        table: RowTable,
    ) -> torch.Tensor:  # [num_query, width]
        """Fill a draft plan and write the KV of its query tokens: states to begin rounds with."""
        page_size = self._kv.layout.page_size
        if self._model.facts.begins_with_forward:  # attention does not run
            place_queries(plan, tree, table=table, page_size=page_size)
        else:
            fill(plan, tree, table=table, attention=self._attention, page_size=page_size)
        fill_adapters(plan, table)
        return self._model.catch_up(plan, aux_hidden_states, self._kv, self._attention)

    def _run(
        self,
        plan: StepPlan,
        tree: DraftTree,
        before: torch.Tensor,  # [num_query, width]
        table: RowTable,
        first_node: int = 0,
    ) -> torch.Tensor:  # [num_query, width]
        """Fill a draft plan and run it: the hidden states after its query tokens."""
        fill(
            plan,
            tree,
            table=table,
            attention=self._attention,
            page_size=self._kv.layout.page_size,
            first_node=first_node,
        )
        fill_adapters(plan, table)
        return self._model.forward(plan, before, self._kv, self._attention)

    def _top_tokens(
        self,
        plan: StepPlan,
        tips: Frontier,
        states: torch.Tensor,  # [rows, branches, width]
    ) -> TopTokens:  # of n = rows * branches
        """The tokens most likely to be the target's after each tip."""
        topk = plan.shape.tree.topk
        logits, ids = self._model.logits(states.flatten(0, 1)), self._model.target_ids
        if not plan.shape.sampling_flags.noise:
            return likely_tokens(logits, ids, topk)
        is_alone = states.shape[1] == 1  # otherwise the tips are the query tokens of a level
        rows = plan.decode.rows if is_alone else _plans_of(plan).level.sampled.rows
        positions = tips.positions.flatten()
        return likely_samples(
            logits, ids, topk, table=self._sampling, rows=rows, positions=positions
        )


def _is_plain(shape: StepShape) -> bool:
    """Whether a step drafts nothing and reads no prompt."""
    return shape.nodes == 1 and bool(shape.rows) and not shape.chunk.rows


def _plans_of(plan: StepPlan) -> DraftPlans:
    """The plans on which the draft model runs around a step."""
    assert isinstance(plan.draft, DraftPlans)
    return plan.draft
