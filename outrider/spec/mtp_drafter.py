"""Drafts with one module per depth. All modules run while catching up; proposing only reads.

Every row of draft KV is what a recomputation over the whole committed text would give, as soon as
all tokens that it depends on are committed: stale rows run again in the same window.
"""

from collections.abc import Sequence

import torch

from outrider.kv.kv_pool import KVPool
from outrider.models.draft_model import AuxLayers
from outrider.models.mtp.module_chain import ModuleChain
from outrider.sampling.draft_topk import likely_samples, likely_tokens
from outrider.sampling.sampling_table import SamplingTable
from outrider.spec.drafter import StepOutcome, chain
from outrider.spec.mtp_plans import WindowPlan, WindowPlanner
from outrider.spec.mtp_window import Seen, make_memory, see, take
from outrider.step.attention_backend import AttentionBackend
from outrider.step.draft_tree import DraftTree
from outrider.step.fill_plan import fill
from outrider.step.host_copy import upload
from outrider.step.plan import ChunkRows, DecodeRows, StepPlan
from outrider.step.row_table import RowTable
from outrider.step.shape import StepShape
from outrider.wire.runner_facts import DraftFacts
from outrider.wire.scheduled_batch import RowAdmission


class ModuleDrafter:
    """Owns the modules' KV and, per row, its next drafts and its last committed pairs."""

    def __init__(
        self,
        modules: ModuleChain,
        *,
        kv: KVPool,
        attention: AttentionBackend,
        sampling: SamplingTable,
        facts: DraftFacts,
        largest: StepShape,
    ) -> None:
        assert len(modules) > 1, "one module that is repeated is a draft model"
        self._modules = modules
        self._kv = kv
        self._attention = attention
        self._sampling = sampling
        self._facts = facts
        rows, room = sampling.seed.shape[0], len(modules) - 1
        device = sampling.seed.device
        like = torch.empty(0, dtype=kv.layout.dtype, device=device)
        self._memory = make_memory(rows=rows, room=room, width=modules.facts.width, like=like)
        self._drafts = torch.zeros(rows, len(modules), dtype=torch.int64, device=device)
        self._planner = WindowPlanner(attention, largest, num_modules=len(modules), device=device)

    @property
    def facts(self) -> DraftFacts:
        return self._facts

    @property
    def aux_layers(self) -> AuxLayers:
        return self._modules.facts.aux_layers

    def bind(self, shape: StepShape, decode: DecodeRows, chunk: ChunkRows) -> WindowPlan:
        return self._planner.bind(shape, decode, chunk)

    def admit(self, admissions: Sequence[RowAdmission]) -> None:
        """A new owner has no pairs yet: rows that the prefix cache served are never stale."""
        rows = [admission.row for admission in admissions]
        num = self._memory.num
        num.index_fill_(0, upload(rows, torch.int64, num.device), 0)

    def forget(self) -> None:
        self._memory.forget()

    def propose(self, plan: StepPlan, table: RowTable) -> DraftTree:
        """The chain that was drafted while catching up, as far as each row's budget reaches."""
        decode, num_drafts = plan.decode, plan.shape.nodes - 1
        steps, _, nodes = decode.budgets
        reach = torch.minimum(steps, nodes - 1)[:, None]  # [rows, 1]
        depth = torch.arange(1, num_drafts + 1, device=reach.device)
        drafts = self._drafts[:, :num_drafts].index_select(0, decode.rows)
        root = table.last_tokens.index_select(0, decode.rows)[:, None]
        return chain(torch.cat([root, drafts.masked_fill(depth > reach, -1)], dim=1))

    def observe(self, plan: StepPlan, outcome: StepOutcome, table: RowTable) -> None:
        """Run every module over what the target decided and what that made stale; draft anew."""
        catch_up = _catch_up_of(plan)
        seen = see(self._memory, plan, outcome, catch_up, len(self._modules))
        self._fill(catch_up, seen, table)
        before = seen.aux_hidden_states
        for index in range(len(self._modules)):
            after = self._modules.run(index, catch_up, before, self._kv, self._attention)
            tips = after.index_select(0, seen.windows.tips)
            take(self._guess(plan, seen, tips, index), index, seen, catch_up, self._drafts)
            before = after if self._modules.is_chained else seen.aux_hidden_states

    def _fill(self, catch_up: StepPlan, seen: Seen, table: RowTable) -> None:
        """Place the windows and the chunks as the first module runs them."""
        catch_up.chunk.tokens.copy_(seen.following)
        fill(
            catch_up,
            seen.nodes,
            table=table,
            attention=self._attention,
            page_size=self._kv.layout.page_size,
        )
        slots = catch_up.queries.slots[: catch_up.shape.num_decode_query]
        slots.masked_fill_(seen.is_idle.flatten(), 0)

    def _guess(
        self, plan: StepPlan, seen: Seen, states: torch.Tensor, index: int
    ) -> torch.Tensor:  # states [n, width] -> [n]
        """The token that a module holds most likely to be the target's."""
        logits, ids = self._modules.scores(index, states), self._modules.target_ids
        if not plan.shape.sampling_flags.noise:
            return likely_tokens(logits, ids, 1).tokens.squeeze(1)
        return likely_samples(
            logits,
            ids,
            1,
            table=self._sampling,
            rows=_catch_up_of(plan).decode.rows,
            positions=seen.windows.positions + index,
        ).tokens.squeeze(1)


def _catch_up_of(plan: StepPlan) -> StepPlan:
    """The plan on which the modules run after a step."""
    assert isinstance(plan.draft, WindowPlan)
    return plan.draft.catch_up
