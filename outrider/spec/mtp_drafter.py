"""Drafts with one MTP module per depth. All modules run in the catch-up; proposing only reads.

Draft KV at a position depends on some tokens after it. Once these tokens are committed, the KV is
equal to a recomputation over the whole text: stale positions run again in the draft window.
"""

import math
from collections.abc import Sequence

import torch

from outrider.kv.kv_pool import KVPool
from outrider.models.mtp.module_chain import ModuleChain
from outrider.ops.tree.candidates import Candidates
from outrider.ops.tree.chain import chain
from outrider.ops.tree.draft_tree import DraftTree, StepOutcome
from outrider.ops.tree.mtp_pairs import make_pair_table
from outrider.ops.tree.mtp_window import ModuleInputs, open_windows, write_drafts
from outrider.ops.tree.plan_rows import ChunkRows, DecodeRows
from outrider.sampling.draft_topk import likely_samples, likely_tokens
from outrider.sampling.sampling_table import SamplingTable
from outrider.spec.drafter import BaseDrafter
from outrider.spec.mtp_plans import DraftWindowPlan, WindowPlanner
from outrider.step.attention_backend import AttentionBackend
from outrider.step.fill_plan import fill
from outrider.step.host_copy import upload
from outrider.step.plan import StepPlan
from outrider.step.row_table import RowTable
from outrider.step.shape import StepShape
from outrider.wire.runner_facts import DraftFacts
from outrider.wire.scheduled_batch import RowAdmission

_USUAL = math.log(0.7)  # chance of a draft whose parent was accepted, until it is measured


class ModuleDrafter(BaseDrafter):
    """Owns the modules' KV and, per row, the next drafts and the last committed pairs."""

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
        assert len(modules) > 1, "one module that is repeated runs as a draft model"
        super().__init__(facts, modules.facts.aux_layers)
        self._modules = modules
        self._kv = kv
        self._attention = attention
        self._sampling = sampling
        rows, room = sampling.seed.shape[0], len(modules) - 1
        device = sampling.seed.device
        like = torch.empty(0, dtype=kv.layout.dtype, device=device)
        self._pairs = make_pair_table(rows=rows, room=room, width=modules.facts.width, like=like)
        self._drafts = torch.zeros(rows, len(modules), dtype=torch.int64, device=device)
        self._planner = WindowPlanner(attention, largest, num_modules=len(modules), device=device)

    @property
    def row_tensors(self) -> Sequence[torch.Tensor]:
        pairs = self._pairs.pairs
        return (pairs.tokens, pairs.aux_hidden_states, self._pairs.num)

    def bind(self, shape: StepShape, decode: DecodeRows, chunk: ChunkRows) -> DraftWindowPlan:
        return self._planner.bind(shape.without_adapters(), decode, chunk)

    def admit(self, admissions: Sequence[RowAdmission]) -> None:
        """A new request has no pairs yet: rows from the prefix cache are never stale."""
        rows = [admission.row for admission in admissions]
        num = self._pairs.num
        num.index_fill_(0, upload(rows, torch.int64, num.device), 0)

    def forget(self) -> None:
        self._pairs.clear()

    def propose(self, plan: StepPlan, table: RowTable) -> DraftTree:
        """The chain that was drafted in the catch-up, as long as each row's budget allows."""
        root = table.last_tokens.index_select(0, plan.decode.rows)[:, None]
        return chain(torch.cat([root, self._drafts_of(plan, most=plan.shape.nodes - 1)], dim=1))

    def grow_candidates(
        self, plan: StepPlan, table: RowTable, *, steps: int
    ) -> tuple[torch.Tensor, Candidates]:
        """Node 0 of each row [rows], and its chain. Modules give no probabilities."""
        tokens = self._drafts_of(plan, most=steps)
        depth = torch.arange(steps, device=tokens.device)
        candidates = Candidates(
            scores=(_USUAL * (depth + 1)).masked_fill(tokens < 0, float("-inf")),
            tokens=tokens,
            parents=(depth - 1).expand_as(tokens),
        )
        return table.last_tokens.index_select(0, plan.decode.rows), candidates

    def sampled_rows(self, plan: StepPlan) -> torch.Tensor:  # [rows] int64
        """1 for decode rows that sample, 0 for greedy ones."""
        return self._sampling.is_sampled(plan.decode.rows)

    def _drafts_of(self, plan: StepPlan, *, most: int) -> torch.Tensor:  # [rows, most]
        """The chain of each row; -1 where its budget ends."""
        steps, _, nodes = plan.decode.budgets
        reach = torch.minimum(steps, nodes - 1)[:, None]  # [rows, 1]
        depth = torch.arange(1, most + 1, device=reach.device)
        drafts = self._drafts[:, :most].index_select(0, plan.decode.rows)
        return drafts.masked_fill(depth > reach, -1)

    def observe(self, plan: StepPlan, outcome: StepOutcome, table: RowTable) -> None:
        """Run every module over new and stale positions, and draft the next chain."""
        catch_up = _catch_up_of(plan)
        inputs = open_windows(
            self._pairs,
            outcome,
            plan.decode,
            plan.chunk,
            catch_up=catch_up.decode,
            width=catch_up.shape.nodes,
            num_modules=len(self._modules),
        )
        self._fill(catch_up, inputs, table)
        before = inputs.aux_hidden_states
        for index in range(len(self._modules)):
            after = self._modules.forward_module(index, catch_up, before, self._kv, self._attention)
            newest = after.index_select(0, inputs.windows.newest)
            write_drafts(
                self._draft(plan, inputs, newest, index),
                index,
                inputs,
                catch_up.chunk,
                rows=catch_up.decode.rows,
                drafts=self._drafts,
                queries=catch_up.queries.tokens,
            )
            before = after if self._modules.is_chained else inputs.aux_hidden_states

    def _fill(self, catch_up: StepPlan, inputs: ModuleInputs, table: RowTable) -> None:
        """Fill the plan of the catch-up as the first module runs it."""
        catch_up.chunk.tokens.copy_(inputs.following)
        fill(
            catch_up,
            inputs.nodes,
            table=table,
            attention=self._attention,
            page_size=self._kv.layout.page_size,
        )
        slots = catch_up.queries.slots[: catch_up.shape.num_decode_query]
        slots.masked_fill_(inputs.is_idle.flatten(), 0)

    def _draft(
        self, plan: StepPlan, inputs: ModuleInputs, hidden_states: torch.Tensor, index: int
    ) -> torch.Tensor:  # hidden_states [n, width] -> [n]
        """The token that a module finds most likely to be the target's."""
        logits, ids = self._modules.scores(index, hidden_states), self._modules.target_ids
        if not plan.shape.sampling_flags.noise:
            return likely_tokens(logits, ids, 1).tokens.squeeze(1)
        return likely_samples(
            logits,
            ids,
            1,
            table=self._sampling,
            rows=_catch_up_of(plan).decode.rows,
            positions=inputs.windows.positions + index,
        ).tokens.squeeze(1)


def _catch_up_of(plan: StepPlan) -> StepPlan:
    """The plan on which the modules run after a step."""
    assert isinstance(plan.draft, DraftWindowPlan)
    return plan.draft.catch_up
