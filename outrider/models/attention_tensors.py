"""The stored projections and norms of attention with keys and values, as one layer loads them."""

from typing import Protocol

import torch

from outrider.models.decoder_tensors import QKV
from outrider.models.layers.attention_layer import (
    NoGate,
    SelfAttention,
    SigmoidGate,
    SplitProjection,
)
from outrider.models.layers.normed_linear import project_behind
from outrider.models.model_config import AttentionConfig, ModelConfig
from outrider.models.partial_rope_tensors import spread_channels
from outrider.ops.linear.linear import BiasedLinear, Linear
from outrider.ops.norm_rope.head_norm import HeadNorm, NoHeadNorm, NormEachHead
from outrider.ops.norm_rope.rms_norm import Norm, make_norm


class AttentionReader(Protocol):
    """Reads tensors and makes projections of them."""

    def read(self, *names: str) -> torch.Tensor:
        """The tensors, stacked, on the device in the dtype of activations."""
        ...

    def norm_weight(self, name: str) -> torch.Tensor:
        """The factors of a norm."""
        ...

    def make_linear(self, weight: torch.Tensor) -> Linear: ...


class AttentionLoader:
    """Makes the attention of one layer. Its tensor names begin with `prefix`."""

    def __init__(
        self,
        config: ModelConfig,  # the share of this rank
        attention: AttentionConfig,
        prefix: str,
        reader: AttentionReader,
        *,
        layer: int,
    ) -> None:
        self._config = config
        self._family = config.family
        self._attention = attention
        self._prefix = prefix
        self._reader = reader
        self._layer = layer

    def load(self, norm: Norm, *, num_ranks: int) -> tuple[Norm, SelfAttention]:
        """The norm that remains before the attention, and the attention."""
        has_gates = self._family.has_output_gate
        apart = SplitProjection(
            self._attention, qkv=self._qkv(), head_norm=self._head_norm(), has_gates=has_gates
        )
        norm, project = project_behind(norm, apart, num_ranks=num_ranks)
        output = self._reader.make_linear(self._reader.read(self._prefix + "o_proj.weight"))
        return norm, SelfAttention(
            project=project,
            gate=SigmoidGate() if has_gates else NoGate(),
            output=output,
            rule=self._config.rule_at(self._layer),
        )

    def _qkv(self) -> Linear:
        linear = self._reader.make_linear(self._stacked("weight"))
        return BiasedLinear(linear, self._stacked("bias")) if self._family.has_qkv_bias else linear

    def _stacked(self, part: str) -> torch.Tensor:
        """Weights or biases of queries, keys, values and gates."""
        query, key, value = (self._reader.read(f"{self._prefix}{name}.{part}") for name in QKV)
        query, gate = self._split_gate(query)
        return torch.cat([self._spread(query), self._spread(key), value, gate])

    def _split_gate(self, query: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The rows of queries and the rows of their gates; no gate rows without output gates."""
        if not self._family.has_output_gate:
            return query, query[:0]
        attention = self._attention
        pairs = query.view(attention.heads, 2, attention.head_dim, *query.shape[1:])
        return pairs[:, 0].flatten(0, 1), pairs[:, 1].flatten(0, 1)

    def _spread(self, heads: torch.Tensor) -> torch.Tensor:
        """Queries or keys in the channel order that the layers rotate. See `spread_channels`."""
        head_dim = self._attention.head_dim
        rotated = self._config.pattern.rope_at(self._layer).num_rotated(head_dim)
        return spread_channels(heads, head_dim=head_dim, rotated=rotated)

    def _head_norm(self) -> HeadNorm:
        if not self._family.has_head_norm:
            return NoHeadNorm()
        counts = (("q_norm", self._attention.heads), ("k_norm", self._attention.kv_heads))
        weight = torch.cat(  # [heads + kv_heads, head_dim]
            [
                self._spread(self._reader.norm_weight(f"{self._prefix}{name}.weight")).expand(
                    heads, -1
                )
                for name, heads in counts
            ]
        )
        return NormEachHead(make_norm(weight, self._config.block.norm_eps))
