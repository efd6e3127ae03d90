"""The decoder layer of a head, for EAGLE and EAGLE-3."""

from dataclasses import dataclass

import torch

from outrider.kv.kv_pool import KVPool
from outrider.models.layers.attention_layer import Attention, AttentionStep, pad_rows
from outrider.models.layers.mlp import FeedForward, FeedStep
from outrider.models.layers.rotary_embedding import RotaryEmbedding
from outrider.ops.linear.linear import Linear
from outrider.ops.norm_rope.rms_norm import Norm
from outrider.step.attention_backend import AttentionBackend
from outrider.step.plan import StepPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadLayer:
    """Attention over the head's own KV, then an MLP. The caller normalises the input."""

    rotary: RotaryEmbedding
    attention: Attention
    mlp_norm: Norm
    mlp: FeedForward
    min_rows: int  # with fewer rows its projections are slower

    def __call__(
        self,
        plan: StepPlan,
        x: torch.Tensor,  # [num_query or more, input] of the qkv projection
        residual: torch.Tensor,  # [num_query or more, width]
        kv: KVPool,
        backend: AttentionBackend,
    ) -> torch.Tensor:  # [num_query, width]
        queries = plan.queries
        num_query = queries.tokens.shape[0]
        step = AttentionStep(
            rotation=self.rotary.at(queries.positions),
            slots=queries.slots,
            backend=backend,
            plan=plan.attention,
        )
        (layer,) = kv.layers
        rows = max(num_query, self.min_rows)
        stream = self.attention(pad_rows(x, rows), pad_rows(residual, rows), layer, step)
        feed = FeedStep(tokens=queries.tokens, slots=queries.slots, page_size=kv.layout.page_size)
        return self.mlp(self.mlp_norm(stream), stream, feed)[:num_query]


def apply_padded(linear: Linear, x: torch.Tensor) -> torch.Tensor:  # [n, in] -> [n, out]
    """The projection of every row. Rows of zeros are appended where that is faster."""
    num_rows = x.shape[0]
    return linear(pad_rows(x, max(num_rows, linear.min_rows)))[:num_rows]
