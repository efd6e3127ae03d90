"""Builds a decoder from a model folder, one tensor at a time.

Peak memory is the finished model and one fused projection.
"""

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import torch

from outrider.config.engine_config import Arithmetic, Quantization
from outrider.distributed.rank_group import ONE_RANK, RankGroup
from outrider.hub.vision_config import read_vision
from outrider.models.adapters.adapter_bank import (
    NO_ADAPTERS,
    NO_BANK,
    AdapterBank,
    AdapterWeights,
    BankSizes,
    ReadRows,
    StackRows,
)
from outrider.models.attention_tensors import AttentionLoader
from outrider.models.cut_head import head_cut, make_head
from outrider.models.decoder import Decoder, DecoderLayer, DecoderParts
from outrider.models.decoder_check import as_stored, check_tensors, own_names, quantise_projections
from outrider.models.decoder_tensors import (
    EMBEDDING,
    FUSED_GATE_UP,
    HEAD,
    RECURRENT,
    layer_prefix,
    tensor_shapes,
)
from outrider.models.expert_config import ExpertsConfig
from outrider.models.expert_tensors import are_stacked
from outrider.models.latent_tensors import load_latent_attention
from outrider.models.layers.adjusted_layers import AdjustedAttention, AdjustedFeed, Scaled
from outrider.models.layers.attention_layer import Attention
from outrider.models.layers.gated_activation import Gate, gate_of
from outrider.models.layers.kv_scales import KVScales
from outrider.models.layers.mlp import FeedForward, Mlp
from outrider.models.layers.normed_linear import gate_behind
from outrider.models.layers.reduced_layers import ReducedAttention, ReducedFeed
from outrider.models.layers.rotary_embedding import make_rotaries
from outrider.models.mixture_loader import MixtureLoader
from outrider.models.model_config import (
    AttentionConfig,
    LatentConfig,
    ModelConfig,
    read_config,
)
from outrider.models.norm_tensors import norm_weight
from outrider.models.noted_linears import NotedLinears
from outrider.models.qkv_tensors import key_tensor, kv_heads_in
from outrider.models.quantised.stored_blocks import StoredBlocks, has_stored_blocks
from outrider.models.quantised.stored_kv_scales import find_kv_scales, scales_of_heads
from outrider.models.rank_share import decoder_cuts, share_of
from outrider.models.recurrent.recurrence import Recurrence
from outrider.models.recurrent.recurrent_tensors import load_recurrent_layer
from outrider.models.safetensors_reader import Checkpoint
from outrider.models.tensor_cut import Cut
from outrider.models.tensor_source import RenamedTensors, TensorSource
from outrider.ops.linear.any_weight import AnyWeight, fuse_weights, place_weight, stack_weights
from outrider.ops.linear.block_weight import BlockWeight
from outrider.ops.linear.choose_linear import (
    WeightType,
    choose_linear,
    computed_dtype,
    stored_dtype,
    wide_linear,
)
from outrider.ops.linear.linear import Linear
from outrider.ops.linear.linear_storage import dtype_name
from outrider.ops.linear.tiled_product import why_no_products
from outrider.ops.norm_rope.layer_norm import LayerNorm
from outrider.ops.norm_rope.rms_norm import Norm, NormLater, make_norm

_log = logging.getLogger(__name__)


def load_decoder(
    folder: Path,
    *,
    dtype: WeightType,
    device: torch.device,
    arithmetic: Arithmetic = "fast",
    quantization: Quantization = "none",
    ranks: RankGroup = ONE_RANK,
    bank: BankSizes = NO_BANK,
    max_context: int | None = None,  # of the engine; None: that of the model
) -> Decoder:
    """The decoder in a Hugging Face folder. Its tensors must match its config.json exactly."""
    config = read_config(folder).within(max_context)
    with Checkpoint(folder, config.family.nesting) as checkpoint:
        config = as_stored(checkpoint, config)
        quantise_projections(checkpoint, config, quantization)
        checkpoint.use_codes(device)
        check_tensors(checkpoint, config)
        vision = read_vision(folder)
        if checkpoint.is_partial and not vision.reads_images:
            why = f" (for images, {vision.missing})" if vision.missing else ""
            _log.info("the vision part is not loaded: text only%s", why)
        builder = _Builder(
            config,
            checkpoint,
            are_experts_stacked=are_stacked(own_names(checkpoint, config)),
            dtype=dtype,
            device=device,
            arithmetic=arithmetic,
            ranks=ranks,
        )
        builder.reserve_adapters(bank)
        builder.use_kv_scales(checkpoint.kv_scales())
        builder.make_linear.note_unused(checkpoint.unused_scales)
        if dtype != "packed" or not has_stored_blocks(folder) or why_no_products():
            return builder.build()
        with StoredBlocks(folder, tensor_shapes(config)) as blocks:
            builder.use_blocks(blocks)
            return builder.build()


def build_decoder(
    config: ModelConfig,
    source: TensorSource,
    *,
    dtype: WeightType,
    device: torch.device,
    arithmetic: Arithmetic = "fast",
) -> Decoder:
    """A decoder from tensors that have the right shapes, with separate tensors per expert."""
    builder = _Builder(
        config,
        source,
        are_experts_stacked=False,
        dtype=dtype,
        device=device,
        arithmetic=arithmetic,
        ranks=ONE_RANK,
    )
    return builder.build()


def build_block(
    config: ModelConfig,
    source: TensorSource,  # of tensors by their names below the layer
    *,
    layer: int,
    are_experts_stacked: bool,
    dtype: WeightType,
    device: torch.device,
    arithmetic: Arithmetic = "fast",
    ranks: RankGroup = ONE_RANK,
) -> DecoderLayer:
    """A decoder layer like the given one, from other tensors. Used for draft modules."""
    builder = _Builder(
        config,
        RenamedTensors(source, lambda name: name.removeprefix(layer_prefix(layer))),
        are_experts_stacked=are_experts_stacked,
        dtype=dtype,
        device=device,
        arithmetic=arithmetic,
        ranks=ranks,
    )
    return builder.block(layer)


class _Builder:
    """Makes the parts of one decoder from its tensors."""

    def __init__(
        self,
        config: ModelConfig,
        source: TensorSource,
        *,
        are_experts_stacked: bool,
        dtype: WeightType,
        device: torch.device,
        arithmetic: Arithmetic,
        ranks: RankGroup,
    ) -> None:
        self._model = config
        self._config = share_of(config, ranks)  # what is built here
        self._ranks = ranks
        self._stored_scales: Mapping[str, torch.Tensor] = {}
        self._blocks: StoredBlocks | None = None  # for `use_blocks`
        self._cuts = decoder_cuts(config, ranks, are_experts_stacked=are_experts_stacked)
        self._are_experts_stacked = are_experts_stacked
        self._source = source
        self._arithmetic: Arithmetic = arithmetic
        self._dtype = computed_dtype(dtype, device)
        self._weight_type: WeightType = dtype
        self.make_linear = NotedLinears(choose_linear(dtype, device, arithmetic), self._dtype)
        self._device = device
        self.adapters: AdapterWeights = NO_ADAPTERS
        self._mixtures = MixtureLoader(
            self._config,
            self,
            linears=self.make_linear,
            make_wide_linear=lambda weight: wide_linear(weight, arithmetic),
            ranks=ranks,
        )

    def reserve_adapters(self, sizes: BankSizes) -> None:
        """Give the layers that are made from now on room for adapters."""
        if sizes.num_slots:
            self.adapters = AdapterBank(
                sizes,
                shapes=tensor_shapes(self._model, are_experts_stacked=self._are_experts_stacked),
                names=self._model.family.nesting,
                cuts=self._cuts,
                dtype=self._dtype,
                device=self._device,
            )

    def use_kv_scales(self, stored: Mapping[str, torch.Tensor]) -> None:
        """Scale codes of keys and values, in layers that are made from now on, by these tensors."""
        self._stored_scales = stored

    def use_blocks(self, blocks: StoredBlocks) -> None:
        """Read weights as the blocks of a GGUF file, where they are stored as such."""
        self._blocks = blocks

    def kv_scales(self, prefix: str, attention: AttentionConfig) -> KVScales:
        whole = self._model.attention
        assert isinstance(whole, AttentionConfig), "latents have no such scales"
        found = find_kv_scales(self._stored_scales, prefix, whole.kv_heads)
        cut = self._cuts.cut(prefix + key_tensor(self._model.family))
        heads = kv_heads_in(cut, whole, self._model.family)
        group = attention.heads // attention.kv_heads
        return scales_of_heads(found, heads, group, dtype=self._dtype, device=self._device)

    def build(self) -> Decoder:
        config, embedding = self._config, self._embedding()
        # Before the layers: a tied head is packed while the embedding is resident anyway.
        head = self._head(embedding)
        parts = DecoderParts(
            embedding=embedding,
            rotaries=make_rotaries(
                config.pattern.different_ropes,
                head_dim=config.attention.rotary_dim,
                dtype=self._dtype,
                device=self._device,
            ),
            layers=tuple(self.block(index) for index in range(config.num_layers)),
            norm=self._norm("model.norm.weight"),
            head=head,
        )
        return Decoder(
            self._model,
            parts,
            share=config,
            ranks=self._ranks,
            adapters=self.adapters,
            storage=self.make_linear.facts(),
        )

    def block(self, index: int) -> DecoderLayer:
        attention_norm, attention = self._attention(index)
        mlp_norm, mlp = self._feed(index, are_stacked=self._are_experts_stacked)
        if self._ranks.size > 1:
            attention = ReducedAttention(attention, self._ranks)
            mlp = ReducedFeed(mlp, self._ranks)
        norms, residual = self._config.family.style.norms, self._config.multipliers.residual
        if norms.after_attention:
            attention = AdjustedAttention(attention, self._layer_norm(index, norms.after_attention))
            mlp = AdjustedFeed(mlp, self._layer_norm(index, norms.after_feed))
        if residual != 1.0:
            attention = AdjustedAttention(attention, Scaled(residual))
            mlp = AdjustedFeed(mlp, Scaled(residual))
        return DecoderLayer(
            attention_norm=attention_norm,
            attention=attention,
            mlp_norm=mlp_norm,
            mlp=mlp,
            rotary=self._config.pattern.rope_index(index),
            is_windowed=self._config.pattern.is_windowed(index),
            is_parallel=self._config.family.style.is_parallel,
        )

    def _attention(self, index: int) -> tuple[Norm, Attention]:
        recurrence, config = self._config.recurrence, self._config.attention
        layer = layer_prefix(index)
        prefix = layer + "self_attn."
        norm = self._layer_norm(index, self._config.family.style.norms.before_attention)
        if isinstance(recurrence, Recurrence) and index in recurrence.layers:
            projections = self._config.family.recurrent_projections
            eps = self._config.block.norm_eps
            is_fixed = self._arithmetic == "fixed"
            return norm, load_recurrent_layer(
                recurrence, projections, layer + RECURRENT, self, eps=eps, is_fixed=is_fixed
            )
        if isinstance(config, LatentConfig):
            return norm, load_latent_attention(config, self._config.rope, prefix, self)
        whole = self._model.attention
        assert isinstance(whole, AttentionConfig), "a share of it is"
        loader = AttentionLoader(self._config, config, prefix, self, layer=index)
        return loader.load(norm, self._ranks, of_all=whole.channels)

    def _feed(self, index: int, *, are_stacked: bool) -> tuple[Norm, FeedForward]:
        layer, config = layer_prefix(index), self._config
        experts, style = config.experts_at(index), config.family.style
        norm = self._layer_norm(index, style.norms.before_feed)
        if isinstance(experts, ExpertsConfig):
            return norm, self._mixtures.load(layer, experts, are_stacked=are_stacked)
        block = f"{layer}{style.feed}."
        gate = self.gate(block)
        if style.norms.before_feed:
            norm, gate = gate_behind(norm, gate)
        return norm, Mlp(gate=gate, down=self.linear(block + "down_proj.weight"))

    def gate(self, block: str) -> Gate:
        """The gate of a dense part."""
        style, names = self._config.family.style, ("gate_proj.weight", "up_proj.weight")
        stored = (FUSED_GATE_UP,) if style.has_fused_projections else names
        return gate_of(self.linear(*(block + name for name in stored)), style.activation)

    def read_wide(self, name: str) -> torch.Tensor:
        return self.read_part(name).to(self._device, torch.float32)

    def empty(self, shape: tuple[int, ...]) -> torch.Tensor:
        return torch.empty(shape, dtype=self._dtype, device=self._device)

    def empty_experts(self, shape: tuple[int, ...]) -> torch.Tensor:
        stored = stored_dtype(self._weight_type, self._device)
        return torch.empty(shape, dtype=stored, device=self._device)

    def _layer_norm(self, index: int, name: str) -> Norm:
        """A norm of a layer; none where its family has no name for it."""
        if not name:
            return NormLater(torch.empty(0, device=self._device))
        return self._norm(f"{layer_prefix(index)}{name}.weight")

    def _norm(self, name: str) -> Norm:
        style, block = self._config.family.style, self._config.block
        ones = torch.ones_like(self.empty((block.hidden,)))
        make = LayerNorm if style.has_layer_norms else make_norm
        return make(self.norm_weight(name) if style.has_norm_weights else ones, block.norm_eps)

    def norm_weight(self, name: str) -> torch.Tensor:
        stored, family = self.read_part(name), self._config.family
        return norm_weight(stored, family, dtype=self._dtype, device=self._device)

    def _head(self, embedding: torch.Tensor) -> Linear:
        """The projection to logits."""
        ranks, vocab = self._ranks, self._config.vocab_size
        cut = head_cut(vocab, ranks)
        blocks = self._find_blocks(EMBEDDING if self._config.is_tied else HEAD, cut)
        if blocks is not None and ranks.size == 1:
            return self.make_linear(blocks, [HEAD])
        rows = cut.of(embedding)
        if not self._config.is_tied:
            rows = self._source.read(HEAD, cut).to(self._device, self._dtype)
        make_linear = partial(self.make_linear, names=[HEAD])
        return make_head(rows, ranks, vocab_size=vocab, make_linear=make_linear)

    def linear(self, *names: str) -> Linear:
        """One projection for several weights with the same input, stacked."""

        def stacked(read: ReadRows) -> torch.Tensor:
            return torch.cat([read(name) for name in names])

        return self.adaptable(names, stacked)

    def adaptable(self, names: Sequence[str], stack_rows: StackRows) -> Linear:
        """A projection of the weights of these names, whose adapters are stacked like them."""
        weights = {name: self.read_weight_part(name) for name in names}
        fused = place_weight(fuse_weights(weights, stack_rows), self._device, self._dtype)
        shape, linear = tuple(fused.shape), self.make_linear(fused, names)
        if not isinstance(self.adapters, AdapterBank):
            return linear
        return self.adapters.adapt(linear, names, stack_rows, shape=shape)

    def _embedding(self) -> torch.Tensor:
        """Only the rows of a step's tokens are read, so on a CPU it stays in its file if it can."""
        self.make_linear.note([EMBEDDING], dtype_name(self._dtype))
        return self._source.read(EMBEDDING).to(self._device, self._dtype)

    def read(self, *names: str) -> torch.Tensor:
        """The tensors, stacked, on the device in the dtype of activations."""
        stacked = torch.cat([self.read_part(name) for name in names])
        return stacked.to(self._device, self._dtype)

    def weight(self, *names: str) -> AnyWeight:
        """The weights of a linear layer, stacked, on the device; quantised if stored so."""
        stacked = stack_weights([self.read_weight_part(name) for name in names])
        return place_weight(stacked, self._device, self._dtype)

    def read_weight_part(self, name: str) -> AnyWeight:
        cut = self._cuts.cut(name)
        return self._find_blocks(name, cut) or self._source.read_weight(name, cut)

    def _find_blocks(self, name: str, cut: Cut) -> BlockWeight | None:
        return self._blocks.find(name, cut) if self._blocks else None

    def read_part(self, name: str) -> torch.Tensor:
        """This rank's part of a tensor, as stored."""
        return self._source.read(name, self._cuts.cut(name))
