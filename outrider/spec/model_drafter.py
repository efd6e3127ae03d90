"""The one draft loop: any draft model, head or whole, proposes through it and catches up in it."""

from collections.abc import Sequence

import torch

from outrider.kv.kv_pool import ModelPool
from outrider.models.draft_model import AnyDraftModel, AuxLayers
from outrider.sampling.draft_topk import Likely, likely_samples, likely_tokens
from outrider.sampling.sampling_table import SamplingTable
from outrider.spec.draft_plans import DraftPlanner, DraftPlans
from outrider.spec.draft_slots import DraftSlots
from outrider.spec.drafter import StepOutcome, chain, single_node
from outrider.spec.grow_tree import Frontier, grow, room_for, select
from outrider.step.attention_backend import AttentionPlanner
from outrider.step.draft_tree import DraftTree
from outrider.step.fill_plan import fill
from outrider.step.plan import ChunkRows, DecodeRows, StepPlan, chunk_offsets
from outrider.step.row_table import RowTable
from outrider.step.shape import StepShape
from outrider.wire.runner_facts import DraftFacts
from outrider.wire.scheduled_batch import RowAdmission


class ModelDrafter:
    """Owns the draft model's KV and, per row, its state after the last known token."""

    def __init__(
        self,
        model: AnyDraftModel,
        *,
        kv: ModelPool,
        attention: AttentionPlanner,
        sampling: SamplingTable,
        facts: DraftFacts,
        largest: StepShape,
    ) -> None:
        self._model = model
        self._kv = kv
        self._attention = attention
        self._sampling = sampling
        self._facts = facts
        rows, device = sampling.seed.shape[0], sampling.seed.device
        width, dtype = model.facts.width, kv.layout.dtype
        self._states = torch.zeros(rows, width, dtype=dtype, device=device)
        self._planner = DraftPlanner(attention, largest, device)

    @property
    def facts(self) -> DraftFacts:
        return self._facts

    @property
    def aux_layers(self) -> AuxLayers:
        return self._model.facts.aux_layers

    def bind(self, shape: StepShape, decode: DecodeRows, chunk: ChunkRows) -> DraftPlans:
        return self._planner.bind(shape, decode, chunk)

    def admit(self, admissions: Sequence[RowAdmission]) -> None:
        pass  # a row's state is written when its prompt ends

    def forget(self) -> None:
        self._states.zero_()  # padding drafts from row 0's, which padding alone overwrites

    def propose(self, plan: StepPlan, table: RowTable) -> DraftTree:
        """Grow a tree from each row's state: `steps` selections, one forward less than that."""
        tree, decode = plan.shape.tree, plan.decode
        if tree.nodes == 1 or not tree.steps:
            return single_node(table.last_tokens.index_select(0, decode.rows))
        tips, states = self._plant(plan, table)
        root, slots = tips.nodes.tokens.squeeze(1), DraftSlots(tree=tree)
        candidates = room_for(tree, root)
        for depth in range(1, tree.steps + 1):
            if depth > 1:
                states = self._run_tips(plan, table, tips, states, slots.first_node(depth - 1))
            likely = self._likely(plan, tips, states)
            tips = grow(tips, likely, decode, candidates=candidates, slots=slots, depth=depth)
        return select(root, candidates, decode.budgets, tree)

    def observe(self, plan: StepPlan, outcome: StepOutcome, table: RowTable) -> None:
        """Run the draft model over what the target decided, on true features."""
        catch_up = _plans_of(plan).catch_up
        aux_hidden_states = follow(plan, outcome, catch_up, self._facts.lead)
        before = self._model.project(aux_hidden_states)
        after = self._run(catch_up, chain(outcome.verify_result.emitted), before, table)
        ends = catch_up.sampled.index[catch_up.shape.num_decode_query :]
        if self._facts.lead and plan.shape.chunk.rows:
            keep(after, self._states, plan, outcome, ends[:0])
            self._run_bonus(plan, outcome, after.index_select(0, ends), table)
        else:
            keep(after, self._states, plan, outcome, ends)

    def _run_bonus(
        self, plan: StepPlan, outcome: StepOutcome, before: torch.Tensor, table: RowTable
    ) -> None:
        """The state after each chunk's follower: a head has seen it, a whole model must run it."""
        bonus = _plans_of(plan).bonus
        torch.add(plan.chunk.starts, plan.chunk.counts, out=bonus.decode.lengths)
        bonus.decode.lengths.mul_(plan.chunk.rows > 0)  # padding may be longer than any table
        after = self._run(bonus, single_node(outcome.chunk_choice), before, table)
        self._states.index_copy_(0, plan.chunk.rows, after)

    def _plant(self, plan: StepPlan, table: RowTable) -> tuple[Frontier, torch.Tensor]:
        """Node 0 of every row, whose KV is history, and the state after it [rows, 1, width]."""
        rows, lengths, lead = plan.decode.rows, plan.decode.lengths, self._facts.lead
        level = _plans_of(plan).level
        if rows.is_cuda:
            from outrider.ops.tree.draft_states_triton import (
                plant,  # a CPU installation has no Triton
            )

            scores, numbers, zeros, positions, tokens, states = plant(
                rows=rows,
                lengths=lengths,
                last_tokens=table.last_tokens,
                states=self._states,
                level_lengths=level.decode.lengths,
                lead=lead,
            )
        else:
            torch.add(lengths, lead, out=level.decode.lengths)
            zeros = rows.new_zeros(rows.shape[0], 1)
            scores, numbers, positions = zeros.float(), zeros - 1, lengths[:, None] + 1
            tokens = table.last_tokens.index_select(0, rows)[:, None]
            states = self._states.index_select(0, rows)[:, None]
        nodes = DraftTree(tokens=tokens, parents=zeros, depths=zeros, ancestors=zeros)
        tips = Frontier(
            scores=scores, numbers=numbers, places=zeros, positions=positions, nodes=nodes
        )
        return tips, states

    def _run_tips(
        self,
        plan: StepPlan,
        table: RowTable,
        tips: Frontier,
        states: torch.Tensor,  # [rows, branches, width] of the frontier before
        first_node: int,
    ) -> torch.Tensor:  # [rows, topk, width]
        """The states after the tips, each run on the state of its parent."""
        parents = states if plan.shape.tree.topk == 1 else inherit(states, tips.places)
        before = parents.flatten(0, 1)
        after = self._run(_plans_of(plan).level, tips.nodes, before, table, first_node)
        return after.view_as(parents)

    def _run(
        self,
        plan: StepPlan,
        tree: DraftTree,
        before: torch.Tensor,  # [num_query, width]
        table: RowTable,
        first_node: int = 0,
    ) -> torch.Tensor:  # [num_query, width]
        """States after the query tokens of a draft plan, which is filled here."""
        fill(
            plan,
            tree,
            table=table,
            attention=self._attention,
            page_size=self._kv.layout.page_size,
            first_node=first_node,
        )
        return self._model.advance(plan, before, self._kv, self._attention)

    def _likely(
        self,
        plan: StepPlan,
        tips: Frontier,
        states: torch.Tensor,  # [rows, branches, width]
    ) -> Likely:  # of n = rows * branches
        """The tokens most likely to be the target's below each tip."""
        topk = plan.shape.tree.topk
        logits, ids = self._model.logits(states.flatten(0, 1)), self._model.target_ids
        if not plan.shape.sampling_flags.noise:
            return likely_tokens(logits, ids, topk)
        is_alone = states.shape[1] == 1  # else the tips are the queries of a level
        rows = plan.decode.rows if is_alone else _plans_of(plan).level.sampled.rows
        positions = tips.positions.flatten()
        return likely_samples(
            logits, ids, topk, table=self._sampling, rows=rows, positions=positions
        )


def _plans_of(plan: StepPlan) -> DraftPlans:
    """The plans on which the draft model runs around a step."""
    assert isinstance(plan.draft, DraftPlans)
    return plan.draft


def inherit(
    states: torch.Tensor,  # [rows, branches, width]
    places: torch.Tensor,  # [rows, topk]
) -> torch.Tensor:  # [rows, topk, width]
    """The state of each tip's parent."""
    if states.is_cuda:
        from outrider.ops.tree import draft_states_triton as kernels

        return kernels.inherit(states, places)
    return states.gather(1, places[:, :, None].expand(-1, -1, states.shape[2]))


def follow(plan: StepPlan, outcome: StepOutcome, catch_up: StepPlan, lead: int) -> torch.Tensor:
    """Target features along the kept paths, then of the chunks as they lie: [num_query, tapped].

    Writes where the catch-up starts and the chunk tokens it runs: a head's row runs the next token.
    """
    chunk, lengths, path = plan.chunk, plan.decode.lengths, outcome.verify_result.path
    if path.is_cuda:
        from outrider.ops.tree import draft_states_triton as kernels

        return kernels.follow(
            outcome.aux_hidden_states,
            path,
            lengths,
            chunk=(chunk.counts, chunk.owners, chunk.followers, chunk.tokens, outcome.chunk_choice),
            new_lengths=catch_up.decode.lengths,
            new_tokens=catch_up.chunk.tokens,
            lead=lead,
        )
    torch.add(lengths, lead, out=catch_up.decode.lengths)
    tokens = chunk.tokens if lead else next_tokens(chunk, outcome.chunk_choice)
    catch_up.chunk.tokens.copy_(tokens)
    return _along_path(outcome, plan.shape)


def keep(
    after: torch.Tensor,  # [num_query, width] of the catch-up
    states: torch.Tensor,  # [table_rows, width], written
    plan: StepPlan,
    outcome: StepOutcome,
    ends: torch.Tensor,  # [chunk.rows] or none: the last query token of each chunk
) -> None:
    """Remember the state after each row's last known token."""
    decode, num_accepted, width = (
        plan.decode,
        outcome.verify_result.num_accepted,
        plan.shape.tree.most_emitted,
    )
    chunk_rows = plan.chunk.rows[: ends.shape[0]]
    if after.is_cuda:
        from outrider.ops.tree import draft_states_triton as kernels

        kernels.keep(
            after,
            states,
            num_accepted=num_accepted,
            decode_rows=decode.rows,
            most_emitted=width,
            chunk_ends=ends,
            chunk_rows=chunk_rows,
        )
        return
    tips = width * torch.arange(plan.shape.rows, device=num_accepted.device) + num_accepted
    index = torch.cat([tips, ends])
    states.index_copy_(0, torch.cat([decode.rows, chunk_rows]), after.index_select(0, index))


def _along_path(outcome: StepOutcome, shape: StepShape) -> torch.Tensor:  # [.., tapped]
    """Target features in the order of the kept path, then of the chunks as they lie."""
    nodes, chunks = torch.split(
        outcome.aux_hidden_states, [shape.num_decode_query, shape.chunk.tokens]
    )
    by_row = nodes.view(shape.rows, shape.nodes, nodes.shape[1])
    path = outcome.verify_result.path[:, :, None].expand(-1, -1, nodes.shape[1])
    return torch.cat([by_row.gather(1, path).flatten(0, 1), chunks])


def next_tokens(chunk: ChunkRows, choice: torch.Tensor) -> torch.Tensor:  # [chunk.tokens]
    """The token after each chunk token: of the prompt while it lasts, then the target's choice."""
    after_chunk = torch.where(chunk.followers < 0, choice, chunk.followers)  # [chunk.rows]
    is_end = chunk_offsets(chunk) == chunk.counts[chunk.owners] - 1
    return torch.where(is_end, after_chunk[chunk.owners], chunk.tokens.roll(-1))
