"""Parts that heads of every kind are built from: projections, norms, decoder layers."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch

from outrider.config.engine_config import Arithmetic
from outrider.models.decoder import Decoder, DecoderLayer, stack_layers
from outrider.models.dflash.slot_conv import SlotConvs
from outrider.models.eagle.aux_projection import AuxProjection
from outrider.models.eagle.eagle_layer import HeadLayer, NormedHeadLayer, apply_padded
from outrider.models.eagle.head_config import HeadConfig
from outrider.models.eagle.head_tensors import EMBEDDING, HEAD, layer_prefix
from outrider.models.eagle.token_map import target_ids
from outrider.models.layers.attention_layer import (
    NoGate,
    Projection,
    SelfAttention,
    SplitProjection,
)
from outrider.models.layers.gated_activation import gate_of
from outrider.models.layers.mlp import Mlp
from outrider.models.layers.normed_linear import gate_behind, project_behind, project_blocks
from outrider.models.layers.rotary_embedding import RotaryEmbedding
from outrider.ops.attention.attention_rule import AttentionRule
from outrider.ops.linear.choose_linear import WeightType, choose_linear
from outrider.ops.linear.linear import BiasedLinear, Linear
from outrider.ops.norm_rope.head_norm import HeadNorm, NoHeadNorm, NormEachHead
from outrider.ops.norm_rope.rms_norm import Norm, NormLater, make_norm
from outrider.ops.sampling.widen_logits import widen_logits

_ATTENTION = "self_attn."
_QKV = ("q_proj", "k_proj", "v_proj")


class HeadBuilder:
    """Makes the parts of one head from checked tensors. It may share weights of the target."""

    def __init__(
        self,
        config: HeadConfig,
        tensors: Mapping[str, torch.Tensor],
        target: Decoder,
        *,
        dtype: WeightType,
        device: torch.device,
        arithmetic: Arithmetic,
    ) -> None:
        self._config = config
        self._tensors = tensors
        self._target = target
        self.make_linear = choose_linear(dtype, device, arithmetic)
        self._device = device

    def embedding(self) -> torch.Tensor:  # [vocab, width]
        """Its own embedding, or the target's."""
        shared = self._target.embedding
        if EMBEDDING not in self._tensors:
            return shared
        own = self.read(EMBEDDING)
        return shared if torch.equal(own, shared) else own  # most stored embeddings are copies

    def score(self) -> Callable[[torch.Tensor], torch.Tensor]:
        """Logits of normalised states, by its own lm_head or the target's."""
        if HEAD not in self._tensors:
            return self._target.logits
        head = self.make_linear(self.read(HEAD))
        return lambda state: widen_logits(apply_padded(head, state))

    def project(self) -> Callable[[torch.Tensor], torch.Tensor]:
        """The states of draft rows from aux states."""
        aux = self._config.aux
        if not aux.is_projected:
            return lambda states: states
        norms = {
            "joint": lambda: self.norm("input_norm.weight"),
            "each": self._each_norm,
            "none": self._no_norm,
        }
        return AuxProjection(norm=norms[aux.norm](), linear=self.linear("fc", has_bias=False))

    def _each_norm(self) -> Norm:  # of [n, aux layers, target_hidden]
        names = (
            f"fc_norm.{index}.weight" for index in range(len(self._config.aux.aux_layers.layers))
        )
        weight = torch.stack([self.read(name) for name in names])
        return make_norm(weight, self._config.layer.block.norm_eps)

    def layer(self, index: int, convs: SlotConvs | None = None) -> HeadLayer:
        """A decoder layer. The caller normalises its input."""
        config, prefix = self._config.layer, layer_prefix(index)
        attention = prefix + _ATTENTION
        output = self.linear(attention + "o_proj", has_bias="o_proj" in config.biased)
        norm = self.norm(prefix + "post_attention_layernorm.weight")
        gate = gate_of(
            self.linear(prefix + "mlp.gate_proj", prefix + "mlp.up_proj", has_bias=False)
        )
        if convs is None:  # a convolution reads the normalised state
            norm, gate = gate_behind(norm, gate)
        layer = DecoderLayer(
            attention_norm=self._no_norm(),
            attention=SelfAttention(
                project=self._projection(attention),
                gate=NoGate(),
                output=output,
                rule=AttentionRule(
                    scale=config.attention.head_dim**-0.5, window=config.windows[index]
                ),
            ),
            mlp_norm=norm,
            mlp=Mlp(gate=gate, down=self.linear(prefix + "mlp.down_proj", has_bias=False)),
        )
        return HeadLayer(
            rotary=RotaryEmbedding(
                config.rope,
                head_dim=config.attention.head_dim,
                dtype=self._target.dtype,
                device=self._device,
            ),
            stack=stack_layers([layer if convs is None else convs.around(layer)]),
            kv=self._kv_projection(attention),
            index=index,
            min_rows=output.min_rows,
        )

    def normed_layer(self, index: int, convs: SlotConvs | None = None) -> NormedHeadLayer:
        """A decoder layer with the norm of its input."""
        norm = self.norm(f"{layer_prefix(index)}{self._config.later_norms[0]}.weight")
        return NormedHeadLayer(norm=norm, layer=self.layer(index, convs))

    def later_layers(self) -> tuple[NormedHeadLayer, ...]:
        """All layers but the first."""
        return tuple(self.normed_layer(index) for index in range(1, self._config.num_layers))

    def _projection(self, prefix: str) -> Projection:
        """The qkv projection. Its input is already normalised."""
        config = self._config.layer
        qkv = self.linear(*(prefix + name for name in _QKV), has_bias="q_proj" in config.biased)
        head_norm = self._head_norm(prefix, num_queries=config.attention.heads)
        apart = SplitProjection(config.attention, qkv=qkv, head_norm=head_norm)
        return project_behind(self._no_norm(), apart)[1]

    def _kv_projection(self, prefix: str) -> Projection:
        """The last rows of the qkv projection. A packed layout has no parts: this is a copy."""
        config = self._config.layer
        kv = self.linear(*(prefix + name for name in _QKV[1:]), has_bias="q_proj" in config.biased)
        head_norm = self._head_norm(prefix, num_queries=0)
        no_queries = replace(config.attention, heads=0)
        return project_blocks(
            self._no_norm(), SplitProjection(no_queries, qkv=kv, head_norm=head_norm)
        )

    def _no_norm(self) -> Norm:
        return NormLater(torch.empty(0, device=self._device))

    def _head_norm(self, prefix: str, *, num_queries: int) -> HeadNorm:
        config = self._config.layer
        if not config.has_head_norm:
            return NoHeadNorm()
        query = self.read(prefix + "q_norm.weight").expand(num_queries, -1)
        key = self.read(prefix + "k_norm.weight").expand(config.attention.kv_heads, -1)
        return NormEachHead(make_norm(torch.cat([query, key]), config.block.norm_eps))

    def target_ids(self) -> torch.Tensor:  # [draft_vocab]
        return target_ids(self._tensors, self._config.output).to(self._device)

    def norm(self, name: str) -> Norm:
        return make_norm(self.read(name), self._config.layer.block.norm_eps)

    def linear(self, *names: str, has_bias: bool) -> Linear:
        """One projection for several weights with the same input, stacked."""
        linear = self.make_linear(self.read(*(f"{name}.weight" for name in names)))
        if not has_bias:
            return linear
        return BiasedLinear(linear, self.read(*(f"{name}.bias" for name in names)))

    def read(self, *names: str) -> torch.Tensor:
        """The tensors, stacked, on the device in the target's dtype of activations."""
        stacked = torch.cat([self._tensors[name] for name in names])
        return stacked.to(self._device, self._target.dtype)
