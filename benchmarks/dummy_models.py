"""Models with random weights, made on the device through the builders of real ones.

They take the time and the memory of a trained model; their text means nothing.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch

from benchmarks.kernels.quantised_weights import random_codes
from benchmarks.steps.block_args import MARKOV_RANK, BlockShape
from benchmarks.steps.quantised_bodies import kind_of
from benchmarks.steps.step_args import BodyQuantization
from outrider.config.engine_config import Arithmetic
from outrider.models.decoder import Decoder
from outrider.models.decoder_loader import build_decoder
from outrider.models.decoder_tensors import tensor_shapes
from outrider.models.deepseek_v4.v4_config import V4Config
from outrider.models.deepseek_v4.v4_decoder import V4Decoder
from outrider.models.deepseek_v4.v4_loader import build_v4
from outrider.models.deepseek_v4.v4_module import V4Module, build_v4_module
from outrider.models.deepseek_v4.v4_tensors import TABLE, v4_module_shapes, v4_tensor_shapes
from outrider.models.dflash.dflash_head import DFlashHead
from outrider.models.dflash.dflash_loader import build_dflash
from outrider.models.dflash.dflash_tensors import CONFIDENCE
from outrider.models.draft_model import AnyDraftModel
from outrider.models.eagle.head_builder import HeadBuilder
from outrider.models.eagle.head_config import HeadConfig
from outrider.models.eagle.head_dialects import parse_head
from outrider.models.eagle.head_loader import build_head
from outrider.models.eagle.head_tensors import TO_DRAFT, TO_TARGET, expected_tensors
from outrider.models.model_config import AttentionConfig, ModelConfig
from outrider.models.mtp.inspect_modules import FoundModules, module_shapes
from outrider.models.mtp.module_chain import ModuleChain
from outrider.models.mtp.module_loader import build_modules
from outrider.models.mtp.module_tables import DEEPSEEK, ModuleTable
from outrider.models.tensor_cut import WHOLE, Cut
from outrider.ops.linear.any_weight import AnyWeight
from outrider.ops.linear.choose_linear import WeightType, computed_dtype

_STD = 0.02  # as models are initialised: states stay finite through any number of layers
_SEED = 0
_HEAD_DIM, _KV_HEADS = 128, 8  # of a head, if the target has latents

Shape = tuple[int, ...]


def dummy_decoder(
    config: ModelConfig,
    *,
    dtype: WeightType,
    device: torch.device,
    arithmetic: Arithmetic = "fast",
    quantization: BodyQuantization = "none",
) -> Decoder:
    """A decoder of this shape; equal on every call."""
    shapes, wide = tensor_shapes(config), computed_dtype(dtype, device)
    source = _RandomTensors(shapes, wide, device, quantization)
    return build_decoder(config, source, dtype=dtype, device=device, arithmetic=arithmetic)


def dummy_v4(
    config: V4Config,
    *,
    dtype: WeightType,
    device: torch.device,
    arithmetic: Arithmetic = "fast",
    quantization: BodyQuantization = "none",
) -> V4Decoder:
    """A DeepSeek-V4 of this shape; equal on every call. Its tables spread tokens over experts."""
    shapes = v4_tensor_shapes(config)
    random = _RandomTensors(shapes, computed_dtype(dtype, device), device, quantization)
    source = _WithTables(random, shapes, num_experts=config.feed.num)
    return build_v4(config, source, dtype=dtype, device=device, arithmetic=arithmetic)


def dummy_v4_module(
    target: V4Decoder, *, dtype: WeightType, arithmetic: Arithmetic = "fast"
) -> V4Module:
    """A draft module as in its checkpoint."""
    shapes, device = v4_module_shapes(target.config, 0), target.embedding.device
    source = _RandomTensors(shapes, computed_dtype(dtype, device), device)
    return build_v4_module(source, target, dtype=dtype, arithmetic=arithmetic)


def dummy_head(
    target: Decoder, *, draft_vocab: int, dtype: WeightType, arithmetic: Arithmetic = "fast"
) -> AnyDraftModel:
    """An EAGLE-3 head with a layer like the target's, which can propose `draft_vocab` tokens."""
    config, device = (
        dummy_head_config(target.config, draft_vocab=draft_vocab),
        target.embedding.device,
    )
    shapes = head_shapes(config)
    source = _RandomTensors(shapes, computed_dtype(dtype, device), device)
    tensors = {name: source.read(name) for name in shapes if name != TO_TARGET}
    tensors[TO_TARGET] = _spread(draft_vocab, config.output.vocab)
    return build_head(config, tensors, target, dtype=dtype, device=device, arithmetic=arithmetic)


def dummy_block_head(
    target: Decoder, shape: BlockShape, *, dtype: WeightType, arithmetic: Arithmetic = "fast"
) -> DFlashHead:
    """A head with layers like the target's that drafts blocks of this shape."""
    config, device = dummy_block_config(target.config, shape), target.embedding.device
    shapes = expected_tensors(config, target_hidden=config.aux.target_hidden).needed
    source = _RandomTensors(shapes, computed_dtype(dtype, device), device)
    tensors = {name: source.read(name) for name in shapes}
    builder = HeadBuilder(
        config, tensors, target, dtype=dtype, device=device, arithmetic=arithmetic
    )
    assert config.blocks is not None, "see dummy_block_config"
    return build_dflash(config, config.blocks, builder, tensors)


def dummy_block_config(target: ModelConfig, shape: BlockShape) -> HeadConfig:
    """The config of such a head: five aux states, a mask token, full attention."""
    is_next, layers = shape.kind == "dspark", target.num_layers
    own = {
        "block_size": shape.slots,
        "mask_token_id": 0,
        "target_layer_ids": sorted({layer * (layers - 2) // 4 for layer in range(5)}),
        "markov_rank": MARKOV_RANK if is_next else 0,
        "sample_from_anchor": is_next,
        "confidence_head_with_markov": is_next,
    }
    fields = {
        **_layer_fields(target),
        "architectures": ["Qwen3DSparkModel" if is_next else "DFlashDraftModel"],
        "num_hidden_layers": shape.layers,
        **(own if is_next else {"dflash_config": own}),
    }
    confidence = (f"{CONFIDENCE}.weight", f"{CONFIDENCE}.bias") if is_next else ()
    return parse_head(fields, ("layers.0.self_attn.q_norm.weight", *confidence), target)


def dummy_modules(
    target: Decoder, *, num: int, dtype: WeightType, arithmetic: Arithmetic = "fast"
) -> ModuleChain:
    """Draft modules of the target's family, or of DeepSeek's if it has none."""
    config, device = target.config, target.embedding.device
    own = config.family.modules
    table = own if isinstance(own, ModuleTable) else DEEPSEEK
    found = FoundModules(table=table, num=num, are_experts_stacked=False, own=())
    source = _RandomTensors(module_shapes(config, found), computed_dtype(dtype, device), device)
    return build_modules(found, source, target, most=num, dtype=dtype, arithmetic=arithmetic)


def dummy_head_config(target: ModelConfig, *, draft_vocab: int) -> HeadConfig:
    """The config of such a head, with the usual aux layers."""
    fields = {
        **_layer_fields(target),
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "draft_vocab_size": draft_vocab,
    }
    return parse_head(fields, (), target)


def _layer_fields(target: ModelConfig) -> dict[str, Any]:
    """The sizes of a layer like the target's."""
    attention, block = _head_attention(target), target.block
    return {
        "hidden_size": block.hidden,
        "intermediate_size": block.intermediate,
        "num_attention_heads": attention.heads,
        "num_key_value_heads": attention.kv_heads,
        "head_dim": attention.head_dim,
        "rms_norm_eps": block.norm_eps,
        "rope_theta": target.rope.theta,
    }


def _head_attention(target: ModelConfig) -> AttentionConfig:
    """The target's attention; for a target with latents, heads of the usual size."""
    if isinstance(target.attention, AttentionConfig):
        return target.attention
    head_dim = min(_HEAD_DIM, target.block.hidden)
    heads = target.block.hidden // head_dim
    return AttentionConfig(heads=heads, kv_heads=math.gcd(heads, _KV_HEADS), head_dim=head_dim)


def head_shapes(config: HeadConfig) -> dict[str, Shape]:
    """Name and shape of every tensor of the head; the embedding is the target's."""
    needed = expected_tensors(config, target_hidden=config.aux.target_hidden).needed
    return {name: shape for name, shape in needed.items() if name != TO_DRAFT}


class _RandomTensors:
    """Draws tensors in the order in which they are read."""

    def __init__(
        self,
        shapes: Mapping[str, Shape],
        dtype: torch.dtype,
        device: torch.device,
        quantization: BodyQuantization = "none",
    ) -> None:
        self._shapes = shapes
        self._quantization = quantization
        self._dtype = dtype
        self._device = device
        self._generator = torch.Generator(device).manual_seed(_SEED)

    def read(self, name: str, cut: Cut = WHOLE) -> torch.Tensor:
        """Ones for a norm, zeros for a bias, noise for anything with two axes or more."""
        return cut.of(self._draw(name))

    def read_weight(self, name: str, cut: Cut = WHOLE) -> AnyWeight:
        kind = kind_of(name, self._quantization)
        if kind is None:
            return self.read(name, cut)
        assert cut == WHOLE, "benchmarks of quantised bodies have one rank"
        return random_codes(kind, *self._shapes[name], device=self._device)

    def _draw(self, name: str) -> torch.Tensor:
        tensor = torch.empty(self._shapes[name], dtype=self._dtype, device=self._device)
        if len(self._shapes[name]) == 1:
            return tensor.fill_(0.0 if name.endswith("bias") else 1.0)
        return tensor.normal_(0.0, _STD, generator=self._generator)


class _WithTables:
    """A source that also has tables of the experts of every token."""

    def __init__(
        self, source: _RandomTensors, shapes: Mapping[str, Shape], *, num_experts: int
    ) -> None:
        self._source = source
        self._shapes = shapes
        self._num_experts = num_experts

    def read(self, name: str, cut: Cut = WHOLE) -> torch.Tensor:
        """A table of consecutive experts: the next token has the next ones."""
        if not name.endswith(TABLE):
            return self._source.read(name, cut)
        vocab, top_k = self._shapes[name]
        table = torch.arange(vocab * top_k, device="cpu").view(vocab, top_k) % self._num_experts
        return cut.of(table)

    def read_weight(self, name: str, cut: Cut = WHOLE) -> AnyWeight:
        return self._source.read_weight(name, cut)


def _spread(draft_vocab: int, vocab: int) -> torch.Tensor:  # [draft_vocab] what to add to each id
    """Draft tokens at equal distances over the target's vocabulary."""
    return torch.arange(draft_vocab, device="cpu") * (vocab // draft_vocab - 1)
