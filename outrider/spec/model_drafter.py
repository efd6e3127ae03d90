"""The one draft loop: any draft model, head or whole, proposes through it and catches up in it."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from outrider.attention.protocol import AttentionBackend
from outrider.memory.pool import KVPool
from outrider.models.draft import DraftModel, Taps
from outrider.plan.plan import ChunkRows, StepPlan, UniformRows, chunk_offsets
from outrider.plan.shape import StepShape
from outrider.plan.tree import DraftTree
from outrider.sampling.noise import gumbel_at
from outrider.sampling.table import SamplingTable
from outrider.spec.draft_plans import DraftPlanner, DraftPlans
from outrider.spec.drafter import Outcome, chain, single_node
from outrider.spec.grow import Level, advance_frontier, expand, select
from outrider.spec.slots import DraftSlots
from outrider.step.fill import fill
from outrider.step.rows import RowTable
from outrider.wire.batch import RowAdmission
from outrider.wire.worker import DraftFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class _Branches:
    """The tips that grow next, one or `topk` of them in each row."""

    scores: torch.Tensor  # [rows, branches]
    numbers: torch.Tensor  # [rows, branches] candidate numbers, -1 for node 0
    states: torch.Tensor  # [rows, branches, width] after each tip
    ancestors: torch.Tensor  # [rows, branches] int64 bits of the scratch nodes each one sees


class ModelDrafter:
    """Owns the draft model's KV and, per row, its state after the last known token."""

    def __init__(
        self,
        model: DraftModel,
        *,
        kv: KVPool,
        attention: AttentionBackend,
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
    def taps(self) -> Taps:
        return self._model.facts.taps

    def bind(self, shape: StepShape, uniform: UniformRows, chunk: ChunkRows) -> DraftPlans:
        return self._planner.bind(shape, uniform, chunk)

    def admit(self, admissions: Sequence[RowAdmission]) -> None:
        pass  # a row's state is written when its prompt ends

    def propose(self, plan: StepPlan, table: RowTable) -> DraftTree:
        """Grow a tree from each row's state: `steps` selections, one forward less than that."""
        tree, uniform = plan.shape.tree, plan.uniform
        root = table.last_tokens.index_select(0, uniform.rows)
        if tree.nodes == 1 or not tree.steps:
            return single_node(root)
        branches = self._root(plan)
        levels: list[Level] = []
        for depth in range(1, tree.steps + 1):
            if depth > 1:
                branches = self._grow(plan, table, branches, levels, step=depth - 1)
            levels.append(
                expand(
                    branches.scores,
                    branches.numbers,
                    self._logprobs(plan, branches.states, depth),
                    uniform.budgets,
                    topk=tree.topk,
                    depth=depth,
                    target_ids=self._model.target_ids,
                )
            )
        return select(root, levels, uniform.budgets, tree)

    def observe(self, plan: StepPlan, outcome: Outcome, table: RowTable) -> None:
        """Run the draft model over what the target decided, on true features."""
        plans: DraftPlans = plan.draft
        lead, kept = self._facts.lead, outcome.verdict.kept
        torch.add(plan.uniform.lengths, lead, out=plans.catch_up.uniform.lengths)
        tokens = plan.chunk.tokens if lead else _next_tokens(plan.chunk, outcome.chunk_choice)
        plans.catch_up.chunk.tokens.copy_(tokens)
        before = self._model.project(_along_path(outcome, plan.shape))
        after = self._run(plans.catch_up, chain(outcome.verdict.emitted), before, table)
        width = plans.catch_up.shape.nodes
        last = width * torch.arange(plan.shape.rows, device=kept.device) + kept
        self._states.index_copy_(0, plan.uniform.rows, after.index_select(0, last))
        if plan.shape.chunk.rows:
            index = plans.catch_up.sampled.index[plans.catch_up.shape.num_uniform :]
            ends = after.index_select(0, index)
            self._observe_chunks(plan, outcome, ends, table)

    def _observe_chunks(
        self, plan: StepPlan, outcome: Outcome, ends: torch.Tensor, table: RowTable
    ) -> None:
        """The state after each chunk's follower: a head has seen it, a whole model must run it."""
        plans: DraftPlans = plan.draft
        if self._facts.lead:
            torch.add(plan.chunk.starts, plan.chunk.counts, out=plans.bonus.uniform.lengths)
            ends = self._run(plans.bonus, single_node(outcome.chunk_choice), ends, table)
        self._states.index_copy_(0, plan.chunk.rows, ends)

    def _root(self, plan: StepPlan) -> _Branches:
        """Node 0 of every row, whose KV is history."""
        rows = plan.uniform.rows
        plans: DraftPlans = plan.draft
        torch.add(plan.uniform.lengths, self._facts.lead, out=plans.level.uniform.lengths)
        zero = rows.new_zeros(rows.shape[0], 1)
        return _Branches(
            scores=zero.float(),
            numbers=zero - 1,
            states=self._states.index_select(0, rows)[:, None],
            ancestors=zero,
        )

    def _grow(
        self,
        plan: StepPlan,
        table: RowTable,
        branches: _Branches,
        levels: list[Level],
        *,
        step: int,
    ) -> _Branches:
        """Run the best candidates of the newest level, each on the state of its parent."""
        plans: DraftPlans = plan.draft
        slots, topk = DraftSlots(tree=plan.shape.tree), plan.shape.tree.topk
        first = sum(level.tokens.shape[1] for level in levels[:-1])
        tips = advance_frontier(levels[-1], plan.uniform.budgets, topk=topk, first_number=first)
        width = branches.states.shape[2]
        parents = branches.states.gather(1, tips.places[:, :, None].expand(-1, -1, width))
        own = slots.own_bits(step, tips.tokens.device)
        depths = torch.full_like(tips.tokens, step - 1)
        level = DraftTree(
            tokens=tips.tokens,
            parents=depths,  # a level is run, not judged: nobody asks for parents
            depths=depths,
            ancestors=branches.ancestors.gather(1, tips.places) | own,
        )
        after = self._run(plans.level, level, parents.flatten(0, 1), table, slots.first_node(step))
        return _Branches(
            scores=tips.scores,
            numbers=tips.numbers,
            states=after.view_as(parents),
            ancestors=level.ancestors,
        )

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

    def _logprobs(
        self,
        plan: StepPlan,
        states: torch.Tensor,  # [rows, branches, width]
        depth: int,
    ) -> torch.Tensor:  # [rows, branches, draft_vocab]
        """How likely the target's token at this depth is each token, given the noise it will meet.

        The noise is the target's own, so the two agree on a sample as they do on an argmax.
        """
        rows, branches = states.shape[:2]
        logits = self._model.logits(states.flatten(0, 1)).view(rows, branches, -1)
        if plan.shape.warps.noise:
            index, ids = plan.uniform.rows, self._model.target_ids
            temperature = self._sampling.temperature.index_select(0, index)[:, None]
            seeds = self._sampling.seed.index_select(0, index)
            noise = gumbel_at(seeds, plan.uniform.lengths + depth, ids.expand(rows, -1))
            scale = torch.where(temperature > 0, temperature, 1.0)
            logits = (logits + noise.mul_(temperature)[:, None]) / scale[:, None]
        return logits.log_softmax(-1)


def _along_path(outcome: Outcome, shape: StepShape) -> torch.Tensor:  # [.., tapped]
    """Target features in the order of the kept path, then of the chunks as they lie."""
    nodes, chunks = torch.split(outcome.features, [shape.num_uniform, shape.chunk.tokens])
    by_row = nodes.view(shape.rows, shape.nodes, nodes.shape[1])
    path = outcome.verdict.path[:, :, None].expand(-1, -1, nodes.shape[1])
    return torch.cat([by_row.gather(1, path).flatten(0, 1), chunks])


def _next_tokens(chunk: ChunkRows, choice: torch.Tensor) -> torch.Tensor:  # [chunk.tokens]
    """The token after each chunk token: of the prompt while it lasts, then the target's choice."""
    after_chunk = torch.where(chunk.followers < 0, choice, chunk.followers)  # [chunk.rows]
    is_end = chunk_offsets(chunk) == chunk.counts[chunk.owners] - 1
    return torch.where(is_end, after_chunk[chunk.owners], chunk.tokens.roll(-1))
