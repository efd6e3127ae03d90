"""One step as one program: propose, fill, run the target, choose, verify, commit.

Every executor runs this function. It is pure in its plan, the weights and the device tables.
"""

from dataclasses import dataclass

import torch

from outrider.attention.protocol import AttentionBackend
from outrider.memory.pool import KVPool
from outrider.models.decoder import Decoder
from outrider.plan.plan import StepPlan
from outrider.plan.tree import DraftTree, Verdict
from outrider.sampling.logprobs import LogprobTensors, logprobs_of
from outrider.sampling.sampler import choose
from outrider.sampling.table import SamplingTable
from outrider.spec.commit import commit
from outrider.spec.drafter import Drafter, Outcome
from outrider.spec.verify import path_tokens, verify
from outrider.step.fill import fill, resolve_lengths
from outrider.step.rows import RowTable


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutput:
    """What the host will want to know, still on the device."""

    verdict: Verdict
    chunk_choice: torch.Tensor  # [chunk.rows] token after each chunk, meant only where it is last
    logprobs: LogprobTensors  # of every sampled query token; empty unless the shape asks


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceState:
    """What survives a step: KV pages, row tables, the state of each row's sampling law."""

    kv: KVPool
    rows: RowTable
    sampling: SamplingTable


class StepProgram:
    """Owns nothing; binds the collaborators of a step so that executors need only the plan."""

    def __init__(
        self,
        *,
        model: Decoder,
        drafter: Drafter,
        attention: AttentionBackend,
        state: DeviceState,
    ) -> None:
        self._model = model
        self._drafter = drafter
        self._attention = attention
        self._state = state

    def __call__(self, plan: StepPlan) -> StepOutput:
        state = self._state
        resolve_lengths(plan, state.rows)
        tree = self._drafter.propose(plan, state.rows)
        self._fill(plan, tree)
        states = self._model.run(plan, state.kv, self._attention, self._drafter.taps)
        logits = self._model.logits(states.hidden.index_select(0, plan.sampled.index))
        choice, logprobs = self._choose(plan, tree, logits)
        node_choice, chunk_choice = torch.split(
            choice, [plan.shape.num_uniform, plan.shape.chunk.rows]
        )
        verdict = verify(tree, node_choice.view_as(tree.tokens), plan.shape.tree.most_emitted)
        commit(plan, verdict, chunk_choice, table=state.rows, kv=state.kv)
        self._record(plan, verdict, chunk_choice)
        outcome = Outcome(features=states.features, verdict=verdict, chunk_choice=chunk_choice)
        self._drafter.observe(plan, outcome, state.rows)
        return StepOutput(verdict=verdict, chunk_choice=chunk_choice, logprobs=logprobs)

    def _fill(self, plan: StepPlan, tree: DraftTree) -> None:
        fill(
            plan,
            tree,
            table=self._state.rows,
            attention=self._attention,
            page_size=self._state.kv.layout.page_size,
        )

    def _choose(
        self, plan: StepPlan, tree: DraftTree, logits: torch.Tensor
    ) -> tuple[torch.Tensor, LogprobTensors]:
        """The target's token after every sampled query token, under each row's own law."""
        warps, sampled = plan.shape.warps, plan.sampled
        node_path = path_tokens(tree).flatten(0, 1)  # [num_uniform, nodes - 1]
        chunk_path = node_path.new_full((plan.shape.chunk.rows, node_path.shape[1]), -1)
        path = torch.cat([node_path, chunk_path])
        raw = logits.clone() if warps.logprobs else logits[:0]  # `choose` works in place
        choice = choose(logits, self._state.sampling, sampled.rows, sampled.positions, path, warps)
        return choice, logprobs_of(raw, choice[: raw.shape[0]], warps.top_logprobs)

    def _record(self, plan: StepPlan, verdict: Verdict, chunk_choice: torch.Tensor) -> None:
        """Count what was emitted, for penalties; inside a prompt nothing was."""
        if not plan.shape.warps.penalties:
            return
        depth = torch.arange(verdict.emitted.shape[1], device=verdict.kept.device)
        is_emitted = depth <= verdict.kept[:, None]
        record = self._state.sampling.record
        record(plan.uniform.rows, verdict.emitted, is_emitted)
        record(plan.chunk.rows, chunk_choice[:, None], (plan.chunk.followers < 0)[:, None])
