"""The stored projections and norms of attention with keys and values, as one layer loads them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import torch

from outrider.distributed.rank_group import RankGroup
from outrider.models.adapters.adapter_bank import ReadRows, StackRows
from outrider.models.decoder_tensors import FUSED_QKV, QKV
from outrider.models.layers.adjusted_qkv import (
    ClampedLinear,
    EachHeadNorm,
    JointNorm,
    NormedHeadsLinear,
    QueryKeyNorm,
    SharedJointNorm,
)
from outrider.models.layers.attention_layer import (
    NoGate,
    SelfAttention,
    SigmoidGate,
    SplitProjection,
)
from outrider.models.layers.kv_scales import KVScales
from outrider.models.layers.normed_linear import project_behind
from outrider.models.model_config import AttentionConfig, ModelConfig
from outrider.models.qkv_tensors import spread_heads, stack_qkv
from outrider.models.rope_config import NO_ROPE
from outrider.ops.attention.attention_rule import NO_CAP, AttentionRule
from outrider.ops.linear.linear import BiasedLinear, Linear
from outrider.ops.norm_rope.head_norm import HeadNorm, NoHeadNorm, NormEachHead
from outrider.ops.norm_rope.layer_norm import LayerNorm
from outrider.ops.norm_rope.rms_norm import Norm, make_norm

_HEAD_NORMS = ("q_norm", "k_norm")


class AttentionReader(Protocol):
    """Reads tensors and makes projections of them."""

    def read(self, *names: str) -> torch.Tensor:
        """The tensors, stacked, on the device in the dtype of activations."""
        ...

    def norm_weight(self, name: str) -> torch.Tensor:
        """The factors of a norm."""
        ...

    def empty(self, shape: tuple[int, ...]) -> torch.Tensor:
        """On the device in the dtype of activations."""
        ...

    def linear(self, *names: str) -> Linear:
        """One projection for several weights with the same input, stacked."""
        ...

    def kv_scales(self, prefix: str, attention: AttentionConfig) -> KVScales:
        """The scales of keys and values that are stored for the module of this prefix."""
        ...

    def adaptable(self, names: Sequence[str], stack_rows: StackRows) -> Linear:
        """A projection of the weights of these names, whose adapters are stacked like them."""
        ...


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
        self._attention = attention
        self._prefix = prefix
        self._reader = reader
        self._rope = config.pattern.rope_at(layer)
        self._layer = layer

    def load(
        self,
        norm: Norm,
        ranks: RankGroup,
        *,
        of_all: tuple[int, int],  # channels of queries and of keys, of all ranks together
    ) -> tuple[Norm, SelfAttention]:
        """The norm that remains before the attention, and the attention."""
        has_gates = self._config.family.has_output_gate
        apart = SplitProjection(
            self._attention,
            qkv=self._qkv(ranks, of_all),
            head_norm=self._head_norm(),
            has_gates=has_gates,
        )
        norm, project = project_behind(norm, apart, num_ranks=ranks.size)
        return norm, SelfAttention(
            project=project,
            gate=SigmoidGate() if has_gates else NoGate(),
            output=self._output(ranks.rank),
            rule=self._rule_with_sinks(),
            kv_scales=self._reader.kv_scales(self._prefix, self._attention),
        )

    def _output(self, rank: int) -> Linear:
        linear = self._reader.linear(self._prefix + "o_proj.weight")
        if not self._config.family.style.has_output_bias or rank:  # one rank adds it for all
            return linear
        return BiasedLinear(linear, self._reader.read(self._prefix + "o_proj.bias"))

    def _rule_with_sinks(self) -> AttentionRule:
        rule = self._config.rule_at(self._layer)
        if not self._config.family.style.has_sinks:
            return rule
        return replace(rule, sinks=self._reader.read(self._prefix + "sinks").float())

    def _qkv(self, ranks: RankGroup, of_all: tuple[int, int]) -> Linear:
        style = self._config.family.style
        stored = (FUSED_QKV,) if style.has_fused_projections else QKV
        names = [f"{self._prefix}{name}.weight" for name in stored]
        linear = self._reader.adaptable(names, self._stacked)
        if style.has_joint_head_norm:
            return NormedHeadsLinear(linear, self._joint_norm(ranks, of_all))
        if style.has_head_layer_norm:
            return NormedHeadsLinear(
                linear, EachHeadNorm(*map(self._heads_layer_norm, _HEAD_NORMS))
            )
        if self._config.multipliers.qkv_limit > NO_CAP:
            return ClampedLinear(linear, self._config.multipliers.qkv_limit)
        if not self._config.family.has_qkv_bias:
            return linear
        return BiasedLinear(linear, self._stacked(self._reader.read, "bias"))

    def _stacked(self, read: ReadRows, part: str = "weight") -> torch.Tensor:
        def read_part(name: str) -> torch.Tensor:
            if not self._config.family.style.has_fused_projections:
                return read(f"{self._prefix}{name}.{part}")
            head_dim, heads = self._attention.head_dim, self._attention.heads
            key = self._attention.kv_heads * head_dim
            rows = read(f"{self._prefix}{FUSED_QKV}.{part}")
            return torch.split(rows, [heads * head_dim, key, key])[QKV.index(name)]

        return stack_qkv(read_part, self._config, self._attention, self._rope)

    def _joint_norm(self, ranks: RankGroup, of_all: tuple[int, int]) -> QueryKeyNorm:
        names = (f"{self._prefix}{name}.weight" for name in _HEAD_NORMS)
        weights = [self._reader.norm_weight(name) for name in names]
        query, key = (make_norm(each, self._config.block.norm_eps) for each in weights)
        if ranks.size == 1:
            return JointNorm(query, key)
        return SharedJointNorm(query, key, ranks=ranks, of_all=of_all)

    def _heads_layer_norm(self, name: str) -> Norm:
        weight = self._reader.norm_weight(f"{self._prefix}{name}.weight")  # [heads, head_dim]
        spread = spread_heads(weight.flatten(), self._attention, self._rope)
        return LayerNorm(spread.view_as(weight), self._config.block.norm_eps)

    def _head_norm(self) -> HeadNorm:
        if self._config.family.style.has_plain_head_norm and self._rope != NO_ROPE:
            # After the rotation in transformers: it changes no length, so the order is free.
            heads, dim = self._attention.heads + self._attention.kv_heads, self._attention.head_dim
            ones = torch.ones_like(self._reader.empty((heads, dim)))
            return NormEachHead(make_norm(ones, self._config.block.norm_eps))
        if not self._config.family.has_head_norm:
            return NoHeadNorm()
        counts = zip(_HEAD_NORMS, (self._attention.heads, self._attention.kv_heads), strict=True)
        parts = []
        for name, heads in counts:
            weight = self._reader.norm_weight(f"{self._prefix}{name}.weight")
            parts.append(spread_heads(weight, self._attention, self._rope).expand(heads, -1))
        # [heads + kv_heads, head_dim]
        return NormEachHead(make_norm(torch.cat(parts), self._config.block.norm_eps))
