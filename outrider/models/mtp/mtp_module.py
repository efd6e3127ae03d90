"""One draft module: joins a token and the state before it, then runs one decoder layer."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from outrider.models.decoder import DecoderLayer
from outrider.models.eagle.eagle_layer import apply_padded
from outrider.models.layers.attention_layer import AttentionStep, pad_rows
from outrider.models.layers.mlp import FeedStep
from outrider.models.layers.rotary_embedding import RotaryEmbedding
from outrider.models.mtp.module_tables import ModuleRules
from outrider.ops.linear.linear import Linear
from outrider.ops.norm_rope.rms_norm import Norm
from outrider.ops.tree.plan_rows import Queries
from outrider.step.attention_backend import AttentionBackend
from outrider.step.plan import StepPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleNorms:
    """The norms before the join and after the layer."""

    token: Norm
    state: Norm
    output: Norm


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleParts:
    """All weights of a module. Embedding, rotary and lm_head may be the target's."""

    embedding: torch.Tensor  # [vocab, hidden]
    norms: ModuleNorms
    join: Linear  # [2 * hidden -> hidden]
    rotary: RotaryEmbedding
    block: DecoderLayer
    score: Callable[[torch.Tensor], torch.Tensor]  # [n, hidden] normalised -> [n, vocab]


class MtpModule:
    """A row at position i reads the state of i and token i + 1, and predicts token i + 2."""

    def __init__(self, rules: ModuleRules, parts: ModuleParts) -> None:
        self._rules = rules
        self._parts = parts

    def forward(
        self,
        plan: StepPlan,
        state: torch.Tensor,  # [num_query, hidden] before each query token
        layer: torch.Tensor,  # of the module's KV
        page_size: int,
        attention: AttentionBackend,
    ) -> torch.Tensor:  # [num_query, hidden] after it
        """Run the query tokens of a plan. Writes their KV."""
        queries, block = plan.queries, self._parts.block
        num_query = queries.tokens.shape[0]
        step, stream = self._step(plan, attention), self._join(queries, state)
        feed = FeedStep(tokens=queries.tokens, slots=queries.slots, page_size=page_size)
        stream = block.attention(block.attention_norm(stream), stream, layer, step)
        stream = block.mlp(block.mlp_norm(stream), stream, feed)[:num_query]
        return self._parts.norms.output(stream) if self._rules.is_state_normed else stream

    def write_kv(
        self,
        plan: StepPlan,
        state: torch.Tensor,  # [num_query, hidden]
        layer: torch.Tensor,
        attention: AttentionBackend,
    ) -> None:
        """Write the KV that `forward` would write."""
        stream, block = self._join(plan.queries, state), self._parts.block
        block.attention.write_kv(block.attention_norm(stream), layer, self._step(plan, attention))

    def logits(self, state: torch.Tensor) -> torch.Tensor:  # [n, hidden] -> [n, vocab]
        """Logits of the token that follows the state."""
        is_ready = self._rules.is_state_normed
        return self._parts.score(state if is_ready else self._parts.norms.output(state))

    def _step(self, plan: StepPlan, attention: AttentionBackend) -> AttentionStep:
        return AttentionStep(
            rotation=self._parts.rotary.at(plan.queries.positions),
            slots=plan.queries.slots,
            backend=attention,
            plan=plan.attention,
        )

    def _join(self, queries: Queries, state: torch.Tensor) -> torch.Tensor:
        """The input of the layer: [num_query or more, hidden]."""
        joined = apply_padded(self._parts.join, self._concatenate(queries, state))
        return pad_rows(joined, max(joined.shape[0], self._parts.join.min_rows))

    def _concatenate(self, queries: Queries, state: torch.Tensor) -> torch.Tensor:
        """Token embedding and state, each normalised: [num_query, 2 * hidden]."""
        norms = self._parts.norms
        embedded = F.embedding(queries.tokens, self._parts.embedding)
        if self._rules.is_first_blank:
            embedded = embedded * (queries.positions > 0)[:, None]
        pair = norms.token(embedded), norms.state(state)
        return torch.cat(pair[::-1] if self._rules.is_state_first else pair, dim=-1)
