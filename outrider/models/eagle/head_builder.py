"""Parts that heads of every kind are built from: projections, norms, decoder layers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from outrider.config.engine_config import Arithmetic
from outrider.models.adapters.adapter_bank import AdapterBank
from outrider.models.decoder import DecoderLayer, stack_layers
from outrider.models.dflash.slot_conv import SlotConvs
from outrider.models.eagle.aux_projection import AuxProjection
from outrider.models.eagle.eagle_layer import HeadLayer, NormedHeadLayer, apply_padded
from outrider.models.eagle.head_config import HeadConfig
from outrider.models.eagle.head_tensors import EMBEDDING, HEAD, HeadAdapterNames, layer_prefix
from outrider.models.eagle.token_map import target_ids
from outrider.models.head_target import HeadTarget
from outrider.models.latent_tensors import load_latent_attention, load_latent_writer
from outrider.models.layers.attention_layer import (
    Attention,
    KVWriter,
    NoGate,
    Projection,
    SelfAttention,
    SplitProjection,
)
from outrider.models.layers.gated_activation import gate_of
from outrider.models.layers.mlp import Mlp
from outrider.models.layers.normed_linear import gate_behind, project_behind, project_tiles
from outrider.models.layers.rotary_embedding import RotaryEmbedding
from outrider.models.model_config import AttentionConfig, LatentConfig
from outrider.ops.attention.attention_rule import AttentionRule
from outrider.ops.linear.choose_linear import WeightType, choose_linear
from outrider.ops.linear.linear import BiasedLinear, Linear
from outrider.ops.norm_rope.head_norm import HeadNorm, NoHeadNorm, NormEachHead
from outrider.ops.norm_rope.rms_norm import Norm, NormLater, make_norm
from outrider.ops.sampling.widen_logits import widen_logits

_ATTENTION = "self_attn."
_QKV = ("q_proj", "k_proj", "v_proj")


@dataclass(frozen=True, slots=True, kw_only=True)
class _HeadAttention:
    """The attention of a layer, and the part of it that only writes."""

    attention: Attention
    kv: KVWriter
    min_rows: int  # with fewer rows its projections are slower


class HeadBuilder:
    """Makes the parts of one head from checked tensors. It may share weights of the target."""

    def __init__(
        self,
        config: HeadConfig,
        tensors: Mapping[str, torch.Tensor],
        target: HeadTarget,
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
        self._adapters: AdapterBank | None = None  # for `reserve_adapters`

    def reserve_adapters(self) -> AdapterBank | None:
        """Give the layers that are made from now on room for adapters, if the target has room."""
        bank = self._target.adapters
        if isinstance(bank, AdapterBank):
            shapes = {name: tuple(tensor.shape) for name, tensor in self._tensors.items()}
            self._adapters = bank.for_head(shapes, HeadAdapterNames())
        return self._adapters

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
        parts = self._attention(prefix + _ATTENTION, config.windows[index])
        norm = self.norm(prefix + "post_attention_layernorm.weight")
        gate = gate_of(
            self.linear(prefix + "mlp.gate_proj", prefix + "mlp.up_proj", has_bias=False)
        )
        if convs is None:  # a convolution reads the normalised state
            norm, gate = gate_behind(norm, gate)
        layer = DecoderLayer(
            attention_norm=self._no_norm(),
            attention=parts.attention,
            mlp_norm=norm,
            mlp=Mlp(gate=gate, down=self.linear(prefix + "mlp.down_proj", has_bias=False)),
        )
        return HeadLayer(
            rotary=RotaryEmbedding(
                config.rope,
                head_dim=config.attention.rotary_dim,
                dtype=self._target.dtype,
                device=self._device,
            ),
            stack=stack_layers([layer if convs is None else convs.around(layer)]),
            kv=parts.kv,
            index=index,
            min_rows=parts.min_rows,
        )

    def normed_layer(self, index: int, convs: SlotConvs | None = None) -> NormedHeadLayer:
        """A decoder layer with the norm of its input."""
        norm = self.norm(f"{layer_prefix(index)}{self._config.later_norms[0]}.weight")
        return NormedHeadLayer(norm=norm, layer=self.layer(index, convs))

    def later_layers(self) -> tuple[NormedHeadLayer, ...]:
        """All layers but the first."""
        return tuple(self.normed_layer(index) for index in range(1, self._config.num_layers))

    def _attention(self, prefix: str, window: int) -> _HeadAttention:
        """Attention whose tensor names begin with `prefix`. Its input is already normalised."""
        config = self._config.layer
        if isinstance(config.attention, LatentConfig):
            return self._latent_attention(config.attention, prefix)
        output = self.linear(prefix + "o_proj", has_bias="o_proj" in config.biased)
        attention = SelfAttention(
            project=self._projection(config.attention, prefix),
            gate=NoGate(),
            output=output,
            rule=AttentionRule(scale=config.attention.head_dim**-0.5, window=window),
        )
        kv = self._kv_projection(config.attention, prefix)
        return _HeadAttention(attention=attention, kv=kv, min_rows=output.min_rows)

    def _latent_attention(self, config: LatentConfig, prefix: str) -> _HeadAttention:
        # Trainers of heads give all norms the epsilon of the config, unlike those of targets.
        rope, eps = self._config.layer.rope, self._config.layer.block.norm_eps
        writer = load_latent_writer(config, rope, prefix, self, norm_eps=eps)
        return _HeadAttention(
            attention=load_latent_attention(config, rope, prefix, self, norm_eps=eps),
            kv=writer,
            min_rows=writer.min_rows,
        )

    def _projection(self, attention: AttentionConfig, prefix: str) -> Projection:
        """The qkv projection."""
        has_bias = "q_proj" in self._config.layer.biased
        qkv = self.linear(*(prefix + name for name in _QKV), has_bias=has_bias)
        head_norm = self._head_norm(attention, prefix)
        apart = SplitProjection(attention, qkv=qkv, head_norm=head_norm)
        return project_behind(self._no_norm(), apart)[1]

    def _kv_projection(self, attention: AttentionConfig, prefix: str) -> Projection:
        """The last rows of the qkv projection. A packed layout has no parts: this is a copy."""
        has_bias = "q_proj" in self._config.layer.biased
        kv = self.linear(*(prefix + name for name in _QKV[1:]), has_bias=has_bias)
        no_queries = replace(attention, heads=0)
        head_norm = self._head_norm(no_queries, prefix)
        return project_tiles(
            self._no_norm(), SplitProjection(no_queries, qkv=kv, head_norm=head_norm)
        )

    def _no_norm(self) -> Norm:
        return NormLater(torch.empty(0, device=self._device))

    def _head_norm(self, attention: AttentionConfig, prefix: str) -> HeadNorm:
        config = self._config.layer
        if not config.has_head_norm:
            return NoHeadNorm()
        query = self.read(prefix + "q_norm.weight").expand(attention.heads, -1)
        key = self.read(prefix + "k_norm.weight").expand(attention.kv_heads, -1)
        return NormEachHead(make_norm(torch.cat([query, key]), config.block.norm_eps))

    def target_ids(self) -> torch.Tensor:  # [draft_vocab]
        return target_ids(self._tensors, self._config.output).to(self._device)

    def norm(self, name: str) -> Norm:
        return make_norm(self.read(name), self._config.layer.block.norm_eps)

    def linear(self, *names: str, has_bias: bool) -> Linear:
        """One projection for several weights with the same input, stacked."""
        linear = self._adaptable([f"{name}.weight" for name in names])
        if not has_bias:
            return linear
        return BiasedLinear(linear, self.read(*(f"{name}.bias" for name in names)))

    def _adaptable(self, names: Sequence[str]) -> Linear:
        """A projection of the weights of these names, with their adapters."""
        weight = self.read(*names)
        linear = self.make_linear(weight)
        if self._adapters is None:
            return linear
        return self._adapters.adapt(
            linear,
            names,
            lambda read: torch.cat([read(name) for name in names]),
            shape=tuple(weight.shape),
        )

    def weight(self, *names: str) -> torch.Tensor:
        """The weights of a linear layer, stacked. Heads are not quantised."""
        return self.read(*names)

    def read(self, *names: str) -> torch.Tensor:
        """The tensors, stacked, on the device in the target's dtype of activations."""
        stacked = torch.cat([self._tensors[name] for name in names])
        return stacked.to(self._device, self._target.dtype)
