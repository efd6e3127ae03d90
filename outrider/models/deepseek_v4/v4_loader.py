"""Builds a DeepSeek-V4 decoder from a model folder, a layer at a time."""

from pathlib import Path

import torch

from outrider.config.engine_config import Arithmetic
from outrider.distributed.rank_group import ONE_RANK, RankGroup
from outrider.models.cut_head import head_cut, make_head
from outrider.models.deepseek_v4.compression import CompressedBlocks, NoBlocks
from outrider.models.deepseek_v4.residual_streams import Collapse, Connection
from outrider.models.deepseek_v4.v4_attention import (
    AttentionNorms,
    AttentionProjections,
    V4Attention,
)
from outrider.models.deepseek_v4.v4_blocks import (
    BlockPlace,
    BlockReader,
    DenseBlocks,
    NoBlockReader,
    SparseBlocks,
)
from outrider.models.deepseek_v4.v4_config import V4Config
from outrider.models.deepseek_v4.v4_decoder import V4Block, V4Decoder, V4Parts
from outrider.models.deepseek_v4.v4_rotary import TailRotary
from outrider.models.deepseek_v4.v4_share import share_of_v4, v4_cuts
from outrider.models.deepseek_v4.v4_tensors import (
    EMBEDDING,
    EXPERTS,
    HEAD,
    NORM,
    TABLE,
    integer_names,
    stored_names,
    v4_tensor_shapes,
)
from outrider.models.expert_tensors import ApartExperts, ExpertSizes
from outrider.models.expert_weights import ExpertBytes, read_experts
from outrider.models.layers.expert_parallel import divide_experts, held_experts
from outrider.models.layers.gated_activation import SplitGate
from outrider.models.layers.mlp import Mlp
from outrider.models.layers.moe import MoeMlp
from outrider.models.layers.router import Router, TableRouter, TopKRouter
from outrider.models.safetensors_reader import Checkpoint
from outrider.models.tensor_source import RenamedTensors, TensorSource
from outrider.ops.linear.any_weight import AnyWeight, place_weight, stack_weights
from outrider.ops.linear.choose_linear import (
    WeightType,
    choose_linear,
    computed_dtype,
    stored_dtype,
)
from outrider.ops.linear.grouped_linear import make_grouped
from outrider.ops.linear.hyper_connections import MixWeights
from outrider.ops.linear.linear import Linear
from outrider.ops.moe.experts import make_experts
from outrider.ops.moe.gate_form import ExpertGate
from outrider.ops.norm_rope.partial_rope import VectorNorm
from outrider.ops.norm_rope.rms_norm import Norm, make_norm
from outrider.ops.sparse.compress import Compressor


def load_v4(
    folder: Path,
    config: V4Config,
    *,
    dtype: WeightType,
    device: torch.device,
    arithmetic: Arithmetic = "fast",
    ranks: RankGroup = ONE_RANK,
) -> V4Decoder:
    """The decoder in a folder, whose tensors must match its config.json exactly."""
    with Checkpoint(folder) as checkpoint:
        stored = stored_names(checkpoint.names)
        shapes = {stored.get(name, name): shape for name, shape in v4_tensor_shapes(config).items()}
        own = set(stored.values())
        checkpoint.check(
            shapes,
            integers={stored.get(name, name) for name in integer_names(config)},
            among=lambda name: name in own,
        )
        source = RenamedTensors(checkpoint, stored.__getitem__)
        return build_v4(
            config, source, dtype=dtype, device=device, arithmetic=arithmetic, ranks=ranks
        )


def build_v4(
    config: V4Config,
    source: TensorSource,
    *,
    dtype: WeightType,
    device: torch.device,
    arithmetic: Arithmetic = "fast",
    ranks: RankGroup = ONE_RANK,
) -> V4Decoder:
    """A decoder from tensors with checked shapes, by the names of the hub."""
    builder = V4Builder(
        config, source, dtype=dtype, device=device, arithmetic=arithmetic, ranks=ranks
    )
    return builder.build()


class V4Builder:
    """Makes the parts of decoders and draft modules, tensor by tensor."""

    def __init__(
        self,
        config: V4Config,
        source: TensorSource,
        *,
        dtype: WeightType,
        device: torch.device,
        arithmetic: Arithmetic,
        ranks: RankGroup,
    ) -> None:
        self._model = config
        self._config = share_of_v4(config, ranks)  # what is built here
        self._ranks = ranks
        self._cuts = v4_cuts(config, ranks)
        self._source = source
        self._arithmetic: Arithmetic = arithmetic
        self._make_linear = choose_linear(dtype, device, arithmetic)
        self._dtype = computed_dtype(dtype, device)
        self._stored_dtype = stored_dtype(dtype, device)
        self._expert_bytes = ExpertBytes(config.num_layers)
        self._device = device

    def build(self) -> V4Decoder:
        config = self._config
        attention = config.attention
        ropes = attention.window_rope, attention.block_rope
        window, blocks = (
            TailRotary(rope, rope_dim=attention.heads.rope_dim, device=self._device)
            for rope in ropes
        )
        parts = V4Parts(
            embedding=self.read(EMBEDDING),
            rotaries=(window, blocks),
            blocks=tuple(
                self.block(f"layers.{index}.", kind, is_hashed=index in config.feed.hashed)
                for index, kind in enumerate(attention.layers)
            ),
            collapse=self.collapse(""),
            head=self.head(HEAD),
        )
        return V4Decoder(self._model, parts, self._ranks)

    def head(self, name: str) -> Linear:
        """A projection to logits, cut by vocabulary."""
        vocab = self._config.vocab_size
        rows = self._source.read(name, head_cut(vocab, self._ranks))
        rows = rows.to(self._device, self._dtype)
        return make_head(rows, self._ranks, vocab_size=vocab, make_linear=self._make_linear)

    def block(self, layer: str, kind: CompressedBlocks | NoBlocks, *, is_hashed: bool) -> V4Block:
        """The layer whose tensors have this prefix."""
        return V4Block(
            attention_streams=self._connection(layer, "attn"),
            attention=self._attention(layer + "attn.", kind),
            feed_streams=self._connection(layer, "ffn"),
            feed=self._feed(layer, is_hashed=is_hashed),
            ranks=self._ranks,
        )

    def collapse(self, prefix: str) -> Collapse:
        """The weights that make one stream of all, and the norm after them."""
        streams = self._config.streams
        mixes = self._mixes(prefix + "hc_head", (streams.num,))
        return Collapse(streams, mixes, self.norm(prefix + NORM))

    def _connection(self, layer: str, part: str) -> Connection:
        num = self._config.streams.num
        mixes = self._mixes(f"{layer}hc_{part}", (num, num, num * num))
        return Connection(self._config.streams, mixes, self.norm(f"{layer}{part}_norm.weight"))

    def _mixes(self, prefix: str, sizes: tuple[int, ...]) -> MixWeights:
        """Mixing weights; one scale is stored per kind of mix."""
        repeats = torch.tensor(sizes, device=self._device)
        return MixWeights(
            projection=self.read_wide(prefix + "_fn"),
            base=self.read_wide(prefix + "_base"),
            scale=self.read_wide(prefix + "_scale").repeat_interleave(repeats),
            norm_eps=self._config.norm_eps,
        )

    def _attention(self, prefix: str, kind: CompressedBlocks | NoBlocks) -> V4Attention:
        config = self._config.attention
        heads, has_index = config.heads, isinstance(kind, CompressedBlocks) and kind.index_width > 0
        state = kind.compressor_width(heads.head_dim) if isinstance(kind, CompressedBlocks) else 0
        query = [prefix + "wq_b.weight", *([prefix + "indexer.wq_b.weight"] if has_index else [])]
        groups = self.read(prefix + "wo_a.weight").view(heads.output_groups, heads.output_rank, -1)
        return V4Attention(
            heads,
            projections=AttentionProjections(
                read=self.linear(*_read_names(prefix, kind)),
                query=self.linear(*query),
                groups=make_grouped(groups.to(self._stored_dtype), self._arithmetic),
                output=self.linear(prefix + "wo_b.weight"),
            ),
            norms=AttentionNorms(
                low_query=self.norm(prefix + "q_norm.weight"),
                query=VectorNorm(self._empty((0,)), self._config.norm_eps),
                vector=self._vector_norm(prefix + "kv_norm.weight"),
                sinks=self.read_wide(prefix + "attn_sink"),
            ),
            blocks=self._reader(prefix, kind),
            widths=(state, config.index.heads if has_index else 0),
        )

    def _reader(self, prefix: str, kind: CompressedBlocks | NoBlocks) -> BlockReader:
        if isinstance(kind, NoBlocks):
            return NoBlockReader()
        config = self._config.attention
        kinds = list(
            dict.fromkeys(each for each in config.layers if isinstance(each, CompressedBlocks))
        )
        series = 2 if kind.is_overlapping else 1
        place = BlockPlace(
            kind=kind, index=kinds.index(kind), channels=2 * series * config.heads.head_dim
        )
        entries = self._compressor(prefix + "compressor.", kind)
        if not kind.index_width:
            return DenseBlocks(place, entries)
        keys = self._compressor(prefix + "indexer.compressor.", kind)
        return SparseBlocks(place, entries, keys=keys, index=config.index)

    def _compressor(self, prefix: str, kind: CompressedBlocks) -> Compressor:
        bias = self.read_wide(prefix + "ape")  # [ratio, series * width]
        # By place in the window: first the block before, which reads the first series.
        series = bias.chunk(2, dim=1) if kind.is_overlapping else (bias,)
        return Compressor(torch.cat(series), self._vector_norm(prefix + "norm.weight"))

    def _feed(self, layer: str, *, is_hashed: bool) -> MoeMlp:
        feed, shared = self._config.feed, layer + "ffn.shared_experts."
        held = held_experts(feed.num, self._ranks)
        sizes = ExpertSizes(len(held), feed.intermediate, self._config.hidden)
        tensors = ApartExperts(sizes, EXPERTS)
        gate_up, down = read_experts(self, tensors, layer, sizes, held, self._empty_experts)
        self._expert_bytes.add(gate_up, down)
        both = self.linear(shared + "w1.weight", shared + "w3.weight")
        return MoeMlp(
            router=self._router(layer, is_hashed=is_hashed),
            experts=divide_experts(
                make_experts(gate_up, down, gate=ExpertGate(limit=feed.limit)),
                held,
                self._ranks.experts,
            ),
            shared=(Mlp(gate=SplitGate(both, feed.limit), down=self.linear(shared + "w2.weight")),),
        )

    def _router(self, layer: str, *, is_hashed: bool) -> Router:
        gate = self.linear(layer + "ffn.gate.weight")
        if is_hashed:
            table = self.read_part(layer + TABLE).to(self._device, torch.int64)
            return TableRouter(self._config.feed.routing, gate=gate, table=table)
        return TopKRouter(
            self._config.feed.routing, gate=gate, bias=self.read_wide(layer + "ffn.gate.bias")
        )

    def norm(self, name: str) -> Norm:
        return make_norm(self.read(name), self._config.norm_eps)

    def _vector_norm(self, name: str) -> VectorNorm:
        return VectorNorm(self.read_wide(name), self._config.norm_eps)

    def linear(self, *names: str) -> Linear:
        """One linear layer for several weights that share their input, stacked."""
        parts = [self.read_weight_part(name) for name in names]
        return self._make_linear(place_weight(stack_weights(parts), self._device, self._dtype))

    def read(self, *names: str) -> torch.Tensor:
        """The tensors, one below the other, on the device in the type of activations."""
        stacked = torch.cat([self.read_part(name) for name in names])
        return stacked.to(self._device, self._dtype)

    def read_wide(self, name: str) -> torch.Tensor:
        """A tensor that is computed with in float32."""
        return self.read_part(name).to(self._device, torch.float32)

    def read_part(self, name: str) -> torch.Tensor:
        """This rank's part of a tensor, as stored."""
        return self._source.read(name, self._cuts.cut(name))

    def read_weight_part(self, name: str) -> AnyWeight:
        return self._source.read_weight(name, self._cuts.cut(name))

    def _empty(self, shape: tuple[int, ...]) -> torch.Tensor:
        return torch.empty(shape, dtype=self._dtype, device=self._device)

    def _empty_experts(self, shape: tuple[int, ...]) -> torch.Tensor:
        return torch.empty(shape, dtype=self._stored_dtype, device=self._device)


def _read_names(prefix: str, kind: CompressedBlocks | NoBlocks) -> list[str]:
    """The projections of a layer's input, in the order in which `V4Attention` splits them."""
    names = ["wq_a", "wkv"]
    if isinstance(kind, CompressedBlocks):
        names += ["compressor.wkv", "compressor.wgate"]
        if kind.index_width:
            names += ["indexer.compressor.wkv", "indexer.compressor.wgate", "indexer.weights_proj"]
    return [f"{prefix}{name}.weight" for name in names]
