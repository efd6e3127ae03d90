"""Drafts with a block-parallel model: one forward pass, then a tree from what its slots predict."""

from collections.abc import Iterator
from dataclasses import replace

import torch

from outrider.kv.kv_pool import KVPool
from outrider.models.block_model import BlockModel
from outrider.ops.sampling.top_tokens import TopTokens
from outrider.ops.tree.accepted_states import accepted_states
from outrider.ops.tree.block_slots import block_slots
from outrider.ops.tree.candidates import Frontier
from outrider.ops.tree.chain import chain, single_node
from outrider.ops.tree.draft_hidden_states import (
    gather_accepted,
    root_frontier,
    store_hidden_states,
)
from outrider.ops.tree.draft_tree import DraftTree, StepOutcome
from outrider.ops.tree.plan_rows import ChunkRows, DecodeRows
from outrider.sampling.draft_topk import likely_samples, likely_tokens
from outrider.sampling.sampling_table import SamplingTable
from outrider.spec.block_plans import BlockPlanner, BlockPlans
from outrider.spec.choose_tree import TreeChooser
from outrider.spec.draft_slots import DraftSlots
from outrider.spec.drafter import BaseDrafter
from outrider.spec.grow_tree import grow, room_for
from outrider.step.attention_backend import AttentionBackend
from outrider.step.fill_plan import fill, place_queries
from outrider.step.plan import StepPlan
from outrider.step.row_table import RowTable
from outrider.step.shape import StepShape
from outrider.wire.runner_facts import DraftFacts

_MOST_AT_ONCE = 256  # rows of logits


class BlockDrafter(BaseDrafter):
    """Owns the draft model's KV: the context of every decided token. If its blocks begin with a
    state of the target, it also owns that state of every row.

    The KV of a block depends on masks. It lies after the context, and the catch-up overwrites it.
    """

    def __init__(
        self,
        model: BlockModel,
        *,
        kv: KVPool,
        attention: AttentionBackend,
        sampling: SamplingTable,
        facts: DraftFacts,
        largest: StepShape,
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
        self._chooser = TreeChooser(device)

    def bind(self, shape: StepShape, decode: DecodeRows, chunk: ChunkRows) -> BlockPlans:
        return self._planner.bind(shape, decode, chunk)

    def forget(self) -> None:
        self._hidden_states.zero_()  # padding reads row 0, which only padding overwrites

    def propose(self, plan: StepPlan, table: RowTable) -> DraftTree:
        """Run the block of every row, then grow its tree slot by slot."""
        tree, decode, block = plan.shape.tree, plan.decode, self._model.block
        root = table.last_tokens.index_select(0, decode.rows)
        if tree.nodes == 1 or not tree.steps:
            return single_node(root)
        states = self._run_block(plan, root, table)[:, block.first : block.first + tree.steps]
        tips, slots = root_frontier(decode, root), DraftSlots(tree=tree)
        candidates = room_for(tree, root)
        for depth, logits in enumerate(self._logits(states), start=1):
            top = self._top_tokens(plan, tips, logits, states[:, depth - 1])
            tips = grow(tips, top, decode, candidates=candidates, slots=slots, depth=depth)
        # The noise makes a drafter sure of other tokens, so sampled rows are measured apart.
        temperatures = self._sampling.temperature
        return self._chooser.choose(
            plan, root, candidates, lambda: (temperatures.index_select(0, decode.rows) > 0).long()
        )

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

    def _top_tokens(
        self,
        plan: StepPlan,
        tips: Frontier,
        logits: torch.Tensor,  # [rows, draft_vocab]
        states: torch.Tensor,  # [rows, width] of the slot that predicts this depth
    ) -> TopTokens:  # of n = rows * branches
        """The tokens most likely to be the target's after each tip."""
        model, before = self._model, tips.nodes.tokens
        rows, branches = plan.decode.rows, before.shape[1]
        if not model.is_conditional:  # all tips of a row have the same children
            top = self._best(plan, logits, rows, tips.positions[:, 0])
            top = TopTokens(
                logprobs=_for_each(top.logprobs, branches), tokens=_for_each(top.tokens, branches)
            )
        else:
            states = _for_each(states, branches)
            logits = _for_each(logits, branches) + model.bias(states, before.flatten())
            top = self._best(plan, logits, _for_each(rows, branches), tips.positions.flatten())
        if plan.shape.tree.topk > 1:
            return top
        chances = model.confidence(states, before.flatten())
        return top if chances is None else replace(top, logprobs=chances[:, None])

    def _best(
        self,
        plan: StepPlan,
        logits: torch.Tensor,  # [n, draft_vocab]
        rows: torch.Tensor,  # [n] of the table
        positions: torch.Tensor,  # [n] of the drafted tokens
    ) -> TopTokens:
        topk, ids = plan.shape.tree.topk, self._model.target_ids
        if not plan.shape.sampling_flags.noise:
            return likely_tokens(logits, ids, topk)
        return likely_samples(
            logits, ids, topk, table=self._sampling, rows=rows, positions=positions
        )


def _for_each(x: torch.Tensor, branches: int) -> torch.Tensor:  # [n, ...] -> [n * branches, ...]
    """Every row of `x` as often as a row has tips."""
    return x if branches == 1 else x.repeat_interleave(branches, dim=0)


def _plans_of(plan: StepPlan) -> BlockPlans:
    """The plans on which the draft model runs around a step."""
    assert isinstance(plan.draft, BlockPlans)
    return plan.draft
