"""EAGLE-3: reads aux_hidden_states of the target; has its own draft vocabulary and lm_head."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from outrider.kv.kv_pool import KVPool
from outrider.models.draft_model import ModelFacts
from outrider.models.eagle.compiled_catch_up import compile_catch_up
from outrider.models.eagle.compiled_head import compile_head
from outrider.models.eagle.eagle_layer import HeadLayer, NormedHeadLayer, run_layers
from outrider.ops.linear.joined_embedding import join_embedding
from outrider.ops.norm_rope.join_normed import join_normed
from outrider.ops.norm_rope.rms_norm import Norm
from outrider.step.attention_backend import AttentionBackend
from outrider.step.plan import StepPlan

Rows = Callable[[torch.Tensor], torch.Tensor]  # [n, in] -> [n, out]


@dataclass(frozen=True, slots=True, kw_only=True)
class Eagle3Norms:
    """The norms around the layer, and two options in which trained heads differ."""

    embedding: Norm
    state: Norm
    output: Norm
    is_residual_normed: bool  # the residual is the normalised state
    is_state_normed: bool  # the next draft row reads the state after the output norm


@dataclass(frozen=True, slots=True, kw_only=True)
class Eagle3Parts:
    """All weights of an EAGLE-3 head. Embedding and lm_head may be the target's."""

    embedding: torch.Tensor  # [vocab, width]
    project: Rows  # [n, aux] -> [n, width]
    layer: HeadLayer
    norms: Eagle3Norms
    score: Rows  # [n, width] normalised -> [n, draft_vocab]
    target_ids: torch.Tensor  # [draft_vocab] int64

    def join(
        self, plan: StepPlan, state: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:  # [num_query, 2 * width], [num_query, width]
        """The input of the layer, and its residual, from the states before the query tokens."""
        norms = self.norms
        x, normed = join_normed(
            plan.queries.tokens,
            self.embedding,
            state,
            embedding_norm=norms.embedding,
            hidden_norm=norms.state,
        )
        return x, normed if norms.is_residual_normed else state


class Eagle3Head:
    """A draft row reads a token and the state before it, each normalised, concatenated."""

    def __init__(
        self,
        facts: ModelFacts,
        parts: Eagle3Parts,  # with the first layer
        later: Sequence[NormedHeadLayer] = (),
    ) -> None:
        self.facts = facts
        self._later = later
        self.target_ids = parts.target_ids
        self._parts = parts
        norms, rotary = parts.norms, parts.layer.rotary
        join = join_embedding(
            parts.embedding, embedding_norm=norms.embedding, hidden_norm=norms.state
        )
        # The same parts; None where some are no compiled functions.
        self._caught_up = compile_catch_up(parts.project, parts.layer.kv, join=join, rotary=rotary)
        self._compiled = compile_head(
            join,
            parts.layer.stack.compiled,
            rotary,
            is_residual_normed=norms.is_residual_normed,
        )

    def project(
        self, aux_hidden_states: torch.Tensor
    ) -> torch.Tensor:  # [num_query, aux] -> [.., width]
        return self._parts.project(aux_hidden_states)

    def forward(
        self, plan: StepPlan, state: torch.Tensor, kv: KVPool, attention: AttentionBackend
    ) -> torch.Tensor:  # [num_query, width]
        norms = self._parts.norms
        after = self._first_layer(plan, state, kv, attention)
        after = run_layers(self._later, plan, after, kv, attention)
        return norms.output(after) if norms.is_state_normed else after

    def _first_layer(
        self, plan: StepPlan, state: torch.Tensor, kv: KVPool, attention: AttentionBackend
    ) -> torch.Tensor:  # [num_query, width]
        layer = self._parts.layer
        stored = kv.layers[layer.index]
        if self._compiled is not None and self._compiled.can_run(attention, [stored]):
            return self._compiled(plan, state, stored)
        x, residual = self._parts.join(plan, state)
        return layer(plan, x, residual, kv, attention)

    def catch_up(
        self,
        plan: StepPlan,
        aux_hidden_states: torch.Tensor,  # [num_query, aux]
        kv: KVPool,
        attention: AttentionBackend,
    ) -> torch.Tensor:  # [num_query, width]
        if self._later:  # the first layer may write to its state, which may be the target's
            state = self.project(aux_hidden_states.clone())
            return self.forward(plan, state, kv, attention)
        layer = self._parts.layer
        stored = kv.layers[layer.index]
        if self._caught_up is not None and stored.dtype == torch.float32:
            return self._caught_up(aux_hidden_states, plan.queries, stored)
        state = self.project(aux_hidden_states)
        layer.write_kv(plan, self._parts.join(plan, state)[0], kv, attention)
        return state

    def logits(self, state: torch.Tensor) -> torch.Tensor:  # [n, width] -> [n, draft_vocab]
        norms = self._parts.norms
        return self._parts.score(state if norms.is_state_normed else norms.output(state))
