"""The decoder layer of a head, for EAGLE and EAGLE-3."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from outrider.kv.kv_pool import KVPool
from outrider.models.decoder import AuxStates, LayerStack
from outrider.models.layers.attention_layer import AttentionStep, KVWriter, pad_rows
from outrider.models.layers.mlp import FeedStep
from outrider.models.layers.rotary_embedding import RotaryEmbedding
from outrider.ops.linear.linear import Linear
from outrider.ops.norm_rope.rms_norm import Norm
from outrider.step.attention_backend import AttentionBackend
from outrider.step.plan import StepPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadLayer:
    """Attention over the head's own KV, then an MLP. The caller normalises the input."""

    rotary: RotaryEmbedding
    stack: LayerStack  # the layer
    kv: KVWriter  # for tokens whose own output is not needed
    index: int  # of its KV in the pool
    min_rows: int  # with fewer rows its projections are slower

    def __call__(
        self,
        plan: StepPlan,
        x: torch.Tensor,  # [num_query or more, input] of the qkv projection
        residual: torch.Tensor,  # [num_query or more, width]
        kv: KVPool,
        backend: AttentionBackend,
    ) -> torch.Tensor:  # [num_query, width]
        queries, layer = plan.queries, kv.layers[self.index]
        num_query = queries.tokens.shape[0]
        rows = max(num_query, self.min_rows)
        steps = (self._step(plan, backend),)
        feed = FeedStep(tokens=queries.tokens, slots=queries.slots, page_size=kv.layout.page_size)
        none = AuxStates(layers=(), out=residual[:num_query, :0])
        stream = self.stack(
            pad_rows(x, rows), pad_rows(residual, rows), [layer], steps=steps, feed=feed, aux=none
        )
        return stream[:num_query]

    def write_kv(
        self,
        plan: StepPlan,
        x: torch.Tensor,  # [num_query or more, input]
        kv: KVPool,
        backend: AttentionBackend,
    ) -> None:
        """Write the keys and values that the layer would write."""
        layer = kv.layers[self.index]
        rows = max(plan.queries.tokens.shape[0], self.min_rows)
        self.kv(pad_rows(x, rows), layer, self._step(plan, backend))

    def _step(self, plan: StepPlan, backend: AttentionBackend) -> AttentionStep:
        return AttentionStep(
            rotation=self.rotary.at(plan.queries.positions),
            slots=plan.queries.slots,
            backend=backend,
            plan=plan.attention,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NormedHeadLayer:
    """A decoder layer of a head, and the norm of its input."""

    norm: Norm
    layer: HeadLayer

    def __call__(
        self,
        plan: StepPlan,
        stream: torch.Tensor,  # [num_query, width]
        kv: KVPool,
        backend: AttentionBackend,
    ) -> torch.Tensor:  # [num_query, width]
        return self.layer(plan, self.norm(stream), stream, kv, backend)


def run_layers(
    layers: Sequence[NormedHeadLayer],
    plan: StepPlan,
    stream: torch.Tensor,  # [num_query, width] may be overwritten
    kv: KVPool,
    backend: AttentionBackend,
) -> torch.Tensor:  # [num_query, width]
    """The stream after all layers."""
    for each in layers:
        stream = each(plan, stream, kv, backend)
    return stream


def apply_padded(linear: Linear, x: torch.Tensor) -> torch.Tensor:  # [n, in] -> [n, out]
    """The projection of every row. Rows of zeros are appended where that is faster."""
    num_rows = x.shape[0]
    return linear(pad_rows(x, max(num_rows, linear.min_rows)))[:num_rows]
