"""Drafts with a block-parallel model: one forward pass, then a tree from what its slots predict."""

import torch

from outrider.kv.kv_pool import ModelPool
from outrider.models.block_model import AnyBlockModel
from outrider.ops.tree.accepted_states import accepted_states
from outrider.ops.tree.block_slots import block_slots
from outrider.ops.tree.candidates import Candidates
from outrider.ops.tree.chain import chain, single_node
from outrider.ops.tree.draft_hidden_states import gather_accepted, store_hidden_states
from outrider.ops.tree.draft_tree import DraftTree, StepOutcome
from outrider.ops.tree.plan_rows import ChunkRows, DecodeRows
from outrider.sampling.sampling_table import SamplingTable
from outrider.spec.block_plans import BlockPlanner, BlockPlans
from outrider.spec.choose_tree import TreeChooser
from outrider.spec.drafter import BaseDrafter
from outrider.spec.slot_candidates import SlotProposer
from outrider.step.attention_backend import AttentionPlanner
from outrider.step.fill_plan import fill, place_queries
from outrider.step.plan import StepPlan
from outrider.step.row_table import RowTable
from outrider.step.shape import StepShape
from outrider.wire.runner_facts import DraftFacts


class BlockDrafter(BaseDrafter):
    """Owns the draft model's KV: the context of every decided token. If its blocks begin with a
    state of the target, it also owns that state of every row.

    The KV of a block depends on masks. It lies after the context, and the catch-up overwrites it.
    """

    def __init__(
        self,
        model: AnyBlockModel,
        *,
        kv: ModelPool,
        attention: AttentionPlanner,
        sampling: SamplingTable,
        facts: DraftFacts,
        largest: StepShape,
        chooser: TreeChooser,
    ) -> None:
        super().__init__(facts, model.facts.aux_layers)
        self._model = model
        self._kv = kv
        self._attention = attention
        self._sampling = sampling
        rows, device = sampling.seed.shape[0], sampling.seed.device
        width = model.facts.width if model.block.reads_state else 0
        self._hidden_states = torch.zeros(rows, width, dtype=kv.layout.dtype, device=device)
        self._planner = BlockPlanner(attention, largest, model=model, device=device)
        self._proposer = SlotProposer(model, sampling)
        self._chooser = chooser

    def bind(self, shape: StepShape, decode: DecodeRows, chunk: ChunkRows) -> BlockPlans:
        return self._planner.bind(shape.without_adapters(), decode, chunk)

    def forget(self) -> None:
        self._hidden_states.zero_()  # padding reads row 0, which only padding overwrites

    def propose(self, plan: StepPlan, table: RowTable) -> DraftTree:
        """The tree of the best nodes of what the slots propose."""
        tree = plan.shape.tree
        if tree.nodes == 1 or not tree.steps:
            return single_node(table.last_tokens.index_select(0, plan.decode.rows))
        root, candidates = self.grow_candidates(plan, table, steps=tree.steps)
        # The noise makes a drafter sure of other tokens, so sampled rows are measured apart.
        return self._chooser.choose(plan, root, candidates, lambda: self.sampled_rows(plan))

    def sampled_rows(self, plan: StepPlan) -> torch.Tensor:  # [rows] int64
        """1 for decode rows that sample, 0 for greedy ones."""
        return self._sampling.is_sampled(plan.decode.rows)

    def grow_candidates(
        self, plan: StepPlan, table: RowTable, *, steps: int
    ) -> tuple[torch.Tensor, Candidates]:
        """Node 0 of each row [rows], and what the first `steps` slots of its block propose."""
        root, first = table.last_tokens.index_select(0, plan.decode.rows), self._model.block.first
        states = self._run_block(plan, root, table)[:, first : first + steps]
        return root, self._proposer.candidates(plan, root, states)

    def observe(self, plan: StepPlan, outcome: StepOutcome, table: RowTable) -> None:
        """Write the context of what the target decided."""
        self._chooser.learn(plan, outcome.verify_result)
        catch_up, page_size = _plans_of(plan).catch_up, self._kv.layout.page_size
        accepted = gather_accepted(
            outcome,
            plan.decode,
            plan.chunk,
            new_lengths=catch_up.decode.lengths,
            new_tokens=catch_up.chunk.tokens,
            lead=self._facts.lead,
            lookahead=self._facts.lookahead,
        )
        tokens = chain(self._tokens_read(plan, outcome))
        if self._model.catch_up_attends:
            attention = self._attention
            fill(catch_up, tokens, table=table, attention=attention, page_size=page_size)
        else:
            place_queries(catch_up, tokens, table=table, page_size=page_size)
        states = self._model.catch_up(catch_up, accepted, self._kv, self._attention)
        if self._model.block.reads_state:
            self._store(plan, outcome, states)

    def _tokens_read(self, plan: StepPlan, outcome: StepOutcome) -> torch.Tensor:
        """The tokens that the catch-up runs in decode rows: [rows, most_emitted]."""
        result = outcome.verify_result
        if self._facts.lookahead or not self._model.catch_up_attends:  # the next ones, or none
            return result.emitted
        own = accepted_states(plan.queries.tokens, outcome.node_queries, result.path)
        return own.view_as(result.path)

    def _store(self, plan: StepPlan, outcome: StepOutcome, states: torch.Tensor) -> None:
        """Store the state before the last token of each row; states are [num_query, width]."""
        catch_up = _plans_of(plan).catch_up
        store_hidden_states(
            states,
            self._hidden_states,
            num_accepted=outcome.verify_result.num_accepted,
            decode_rows=plan.decode.rows,
            most_emitted=plan.shape.tree.most_emitted,
            chunk_ends=catch_up.sampled.index[catch_up.shape.num_decode_query :],
            chunk_rows=plan.chunk.rows,
        )

    def _run_block(
        self, plan: StepPlan, anchors: torch.Tensor, table: RowTable
    ) -> torch.Tensor:  # [rows, slots, width]
        block, slots = self._model.block, _plans_of(plan).block
        if block.lookahead:  # padding has no tokens
            starts = slots.plan.decode.lengths
            torch.sub(plan.decode.lengths, block.lookahead, out=starts).clamp_min_(0)
        if self._model.facts.num_layers:  # otherwise slots read nothing of a plan
            self._fill_slots(slots.plan, anchors, table, is_causal=block.is_causal)
        if self._model.is_mixed:
            self._fill_slots(slots.causal, anchors, table, is_causal=True)
        rows, states = plan.decode.rows, self._hidden_states
        states = (
            states.index_select(0, rows) if block.reads_state else states.new_empty(len(rows), 0)
        )
        return self._model.forward_block(slots, states, self._kv, self._attention)

    def _fill_slots(
        self, plan: StepPlan, anchors: torch.Tensor, table: RowTable, *, is_causal: bool
    ) -> None:
        size, mask = plan.shape.nodes, self._model.block.mask_token
        fill(
            plan,
            block_slots(anchors, size, mask_token=mask, is_causal=is_causal),
            table=table,
            attention=self._attention,
            page_size=self._kv.layout.page_size,
        )


def _plans_of(plan: StepPlan) -> BlockPlans:
    """The plans on which the draft model runs around a step."""
    assert isinstance(plan.draft, BlockPlans)
    return plan.draft
