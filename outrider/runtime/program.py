"""One step as one program: propose, fill, run the target, choose, verify, commit.

Every executor runs this function. It depends on its plan, the weights and the device tables alone.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from outrider.distributed.rank_group import ONE_RANK, RankGroup
from outrider.kv.kv_pool import ModelPool, PageFamily
from outrider.models.adapters.adapter_bank import AdapterWeights
from outrider.models.target import AnyTarget
from outrider.ops.graph_break import graph_break
from outrider.ops.sampling.grammar_mask import mask_tokens_
from outrider.ops.sampling.logprobs import LogprobTensors, joined_logprobs, logprobs_of
from outrider.ops.sampling.sample_token import SampledTokens
from outrider.ops.tree.accepted_states import accepted_states
from outrider.ops.tree.draft_tree import DraftTree, StepOutcome, VerifyResult
from outrider.ops.tree.place_nodes import node_of_query, values_of_nodes
from outrider.ops.tree.plan_rows import chunk_nexts
from outrider.ops.tree.verify import path_tokens
from outrider.runtime.embedding_index import EmbeddingIndex
from outrider.runtime.step_output import PackedOutput, pack_output
from outrider.sampling.sampler import sample_shared_tokens, sample_tokens
from outrider.sampling.sampling_table import SamplingTable
from outrider.spec.commit import commit
from outrider.spec.guarded_drafter import GuardedDrafter
from outrider.step.attention_backend import AttentionPlanner
from outrider.step.fill_plan import fill, fill_adapters, fill_axes, resolve_lengths
from outrider.step.plan import StepPlan
from outrider.step.row_table import RowTable
from outrider.step.shape import ALL_STATES, NO_STATES
from outrider.structured.row_grammars import StepGrammars, pack_trees

MAX_SCORED = 256  # tokens of prompts whose logits exist at the same time

Verifier = Callable[[DraftTree, torch.Tensor, int], VerifyResult]  # as `verify` is


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceState:
    """State that outlives a step: KV pages, row tables, sampling and grammar of each row."""

    kv: ModelPool
    pages: PageFamily  # the target's pool, and the drafter's
    rows: RowTable
    sampling: SamplingTable
    grammars: StepGrammars


class StepProgram:
    """Holds the parts of a step, so that executors need only the plan."""

    def __init__(
        self,
        *,
        model: AnyTarget,
        drafter: GuardedDrafter,
        attention: AttentionPlanner,
        verifier: Verifier,
        state: DeviceState,
        ranks: RankGroup = ONE_RANK,
    ) -> None:
        self._model = model
        self.drafter = drafter
        self._attention = attention
        self._verifier = verifier
        self.state = state
        self._ranks = ranks

    def make_embedding_index(self) -> EmbeddingIndex:
        """Recognises the target's embeddings in prompts."""
        return EmbeddingIndex(self._model.embed, table=self._model.embedding)

    @property
    def adapters(self) -> AdapterWeights:
        """The adapter weights of the target, by slot."""
        return self._model.adapters

    def __call__(self, plan: StepPlan) -> PackedOutput:
        """Run a step and return what the host reads of it."""
        state = self.state
        resolve_lengths(plan, state.rows)
        tree = self.drafter.propose(plan, state.rows)
        self._fill(plan, tree)
        if plan.shape.sampling_flags.grammar:  # the host computes masks while the target runs
            graph_break(state.grammars.send_trees, pack_trees(plan, tree), plan.shape)
        output = self._model.forward(plan, state.kv, self._attention, self.drafter.aux_layers)
        sampled, logprobs = self._sample(plan, tree, _sampled(plan, output.hidden_states))
        node_choice, chunk_choice = torch.split(
            sampled.tokens, [plan.shape.num_decode_query, plan.shape.chunk.rows]
        )
        if plan.shape.ragged:
            node_choice = values_of_nodes(node_choice, plan.queries.of_nodes)
        verify_result = self._verifier(
            tree, node_choice.view_as(tree.tokens), plan.shape.tree.most_emitted
        )
        commit(plan, verify_result, chunk_choice, table=state.rows, kv=state.kv)
        self._record(plan, verify_result, chunk_choice)
        outcome = StepOutcome(
            aux_hidden_states=output.aux_hidden_states,
            node_queries=plan.queries.of_nodes,
            verify_result=verify_result,
            chunk_choice=chunk_choice,
        )
        self.drafter.observe(plan, outcome, state.rows)
        trees = (tree.tokens, tree.parents) if plan.shape.sampling_flags.trees else ()
        logprobs = joined_logprobs([logprobs, *self._score(plan, output.hidden_states)])
        states = _reported_states(plan, output.hidden_states, verify_result)
        return pack_output(verify_result, chunk_choice, sampled.faults, logprobs, states, trees)

    def _fill(self, plan: StepPlan, tree: DraftTree) -> None:
        fill(
            plan,
            tree,
            table=self.state.rows,
            attention=self._attention,
            page_size=self.state.kv.layout.page_size,
        )
        fill_adapters(plan, self.state.rows)
        fill_axes(plan, self.state.rows)

    def _sample(
        self, plan: StepPlan, tree: DraftTree, hidden_states: torch.Tensor
    ) -> tuple[SampledTokens, LogprobTensors]:
        """The target's token after every sampled query token, by the sampling of its row."""
        sampling_flags, sampled = plan.shape.sampling_flags, plan.sampled
        if sampling_flags.is_plain and self._ranks.size > 1:
            return self._sample_shared(plan, hidden_states)
        logits = self._model.logits(hidden_states)
        path = sampled.rows.new_empty((sampled.rows.shape[0], 0))
        if sampling_flags.needs_path:
            node_path = path_tokens(tree).flatten(0, 1)  # [rows * nodes, nodes - 1]
            if plan.shape.ragged:
                node = node_of_query(plan.queries.of_nodes, plan.shape.ragged)
                node_path = node_path.index_select(0, node)
            chunk_path = node_path.new_full((plan.shape.chunk.rows, node_path.shape[1]), -1)
            path = torch.cat([node_path, chunk_path])
        # `sample_tokens` may overwrite the logits.
        raw = logits.clone() if sampling_flags.logprobs else logits[:0]
        if sampling_flags.grammar:
            masks = self.state.grammars.masks(plan.shape)
            graph_break(self.state.grammars.write_masks, masks)
            self._ranks.copy_first_(masks)
            mask_tokens_(logits, masks)
        chosen = sample_tokens(
            logits, self.state.sampling, sampled.rows, sampled.positions, path, sampling_flags
        )
        return chosen, self._logprobs(plan, raw, chosen.tokens, sampled.rows)

    def _sample_shared(
        self, plan: StepPlan, hidden_states: torch.Tensor
    ) -> tuple[SampledTokens, LogprobTensors]:
        """Without gathering logits: each rank takes the best of its tokens."""
        own, sampled = self._model.own_logits(hidden_states), plan.sampled
        nothing = self._logprobs(plan, own.scores[:0], sampled.positions, sampled.rows)
        chosen = sample_shared_tokens(
            own,
            self.state.sampling,
            sampled.rows,
            sampled.positions,
            plan.shape.sampling_flags,
            self._ranks,
        )
        return chosen, nothing

    def _score(self, plan: StepPlan, hidden_states: torch.Tensor) -> list[LogprobTensors]:
        """Log-probabilities of the prompt tokens in the chunks, `MAX_SCORED` at a time."""
        if not plan.shape.sampling_flags.scores:
            return []
        parts = torch.split(
            hidden_states[plan.shape.num_decode_query :], MAX_SCORED
        )  # [chunk.tokens, hidden]
        tokens = torch.split(chunk_nexts(plan.chunk).clamp_min(0), MAX_SCORED)
        rows = torch.split(plan.chunk.rows[plan.chunk.owners], MAX_SCORED)
        return [
            self._logprobs(plan, self._model.logits(part), token, row)
            for part, token, row in zip(parts, tokens, rows, strict=True)
        ]

    def _logprobs(
        self,
        plan: StepPlan,
        logits: torch.Tensor,  # [n, vocab] or nothing
        tokens: torch.Tensor,  # [n] or more
        rows: torch.Tensor,  # [n] or more, into the device tables
    ) -> LogprobTensors:
        size, sampling_flags = logits.shape[0], plan.shape.sampling_flags
        named = self.state.sampling.named_tokens[:, : sampling_flags.named_logprobs]
        return logprobs_of(logits, tokens[:size], named[rows[:size]], sampling_flags.top_logprobs)

    def _record(
        self, plan: StepPlan, verify_result: VerifyResult, chunk_choice: torch.Tensor
    ) -> None:
        """Note the emitted tokens, for penalties and bad words; inside a prompt there are none."""
        sampling_flags, sampling = plan.shape.sampling_flags, self.state.sampling
        if not sampling_flags.needs_path:
            return
        depth = torch.arange(
            verify_result.emitted.shape[1], device=verify_result.num_accepted.device
        )
        is_emitted = depth <= verify_result.num_accepted[:, None]
        is_end = (plan.chunk.followers < 0)[:, None]
        for record, is_used in (
            (sampling.record, sampling_flags.penalties),
            (sampling.record_latest, sampling_flags.bad_words),
            (sampling.record_thinking, sampling_flags.thinking),
        ):
            if is_used:
                record(plan.decode.rows, verify_result.emitted, is_emitted)
                record(plan.chunk.rows, chunk_choice[:, None], is_end)


def _sampled(plan: StepPlan, hidden_states: torch.Tensor) -> torch.Tensor:  # [num_query, hidden]
    """The hidden states that choose a token: without chunks, all of them."""
    if not plan.shape.chunk.rows:
        return hidden_states
    return hidden_states.index_select(0, plan.sampled.index)  # [num_sampled, hidden]


def _reported_states(
    plan: StepPlan,
    hidden_states: torch.Tensor,  # [num_query, hidden]
    verify_result: VerifyResult,
) -> torch.Tensor:  # [n, hidden] as `StepShape.num_states` counts them
    """The hidden states that rows of this step want: on accepted paths, then those of chunks."""
    mode, num_decode_query = plan.shape.sampling_flags.hidden_states, plan.shape.num_decode_query
    if mode == NO_STATES:
        return hidden_states[:0]
    accepted = accepted_states(hidden_states, plan.queries.of_nodes, verify_result.path)
    if mode == ALL_STATES:
        return torch.cat([accepted, hidden_states[num_decode_query:]])
    ends = hidden_states.index_select(0, plan.sampled.index[num_decode_query:])
    return torch.cat([accepted, ends])
