"""Names and shapes of the tensors of a decoder."""

from collections.abc import Iterator

from outrider.models.expert_config import ExpertsConfig
from outrider.models.expert_tensors import (
    STACKED_GATE_UP,
    ApartExperts,
    ExpertTensors,
    StackedExperts,
    sizes_of,
)
from outrider.models.family import ExpertFamily
from outrider.models.latent_tensors import latent_shapes
from outrider.models.model_config import LatentConfig, ModelConfig
from outrider.models.paired_experts import PACKED_GATE_UP, PairedExperts, StackedPairs
from outrider.models.recurrent.recurrence import Recurrence
from outrider.models.recurrent.recurrent_tensors import STACKED_QKV, recurrent_shapes

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
QKV = ("q_proj", "k_proj", "v_proj")
FUSED_QKV = "qkv_proj"
FUSED_GATE_UP = "gate_up_proj.weight"
ROUTER_BIAS = "mlp.gate.e_score_correction_bias"
SHARED_GATE = "mlp.shared_expert_gate.weight"
RECURRENT = "linear_attn."


def tensor_shapes(
    config: ModelConfig, *, are_experts_stacked: bool = False
) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor in the folder of such a model."""
    hidden, vocab = config.block.hidden, config.vocab_size
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (vocab, hidden)}
    if config.family.style.has_norm_weights:
        shapes["model.norm.weight"] = (hidden,)
    if not config.is_tied:
        shapes[HEAD] = (vocab, hidden)
    for index in range(config.num_layers):
        feed = _feed_shapes(config, index, are_stacked=are_experts_stacked)
        for name, shape in (*_attention_shapes(config, index), *feed):
            shapes[layer_prefix(index) + name] = shape
    return shapes


def stacked_parts(config: ModelConfig, name: str) -> tuple[int, ...]:
    """Rows of the projections that one tensor has one below the other, each by heads or channels.

    Empty for a tensor that holds one projection, or groups of heads.
    """
    recurrence, experts = config.recurrence, config.experts
    if isinstance(recurrence, Recurrence) and name.endswith(STACKED_QKV):
        return (recurrence.keys, recurrence.keys, recurrence.values)
    if isinstance(experts, ExpertsConfig) and name.endswith(_halved(config)):
        return (experts.intermediate, experts.intermediate)
    if config.family.style.has_fused_projections:
        return _fused_parts(config, name)
    return ()


def _halved(config: ModelConfig) -> str:
    """How the names of expert tensors end that have all gates before the ups."""
    return PACKED_GATE_UP if expert_family(config).has_pairs else STACKED_GATE_UP


def _fused_parts(config: ModelConfig, name: str) -> tuple[int, ...]:
    attention = config.plain_attention
    key = attention.kv_heads * attention.head_dim
    if name.endswith(f"{FUSED_QKV}.weight"):
        return (attention.heads * attention.head_dim, key, key)
    if name.endswith(FUSED_GATE_UP):
        return (config.block.intermediate, config.block.intermediate)
    return ()


def _attention_shapes(config: ModelConfig, layer: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    attention, hidden, family = config.attention, config.block.hidden, config.family
    for norm in family.style.norms.stored if family.style.has_norm_weights else ():
        yield f"{norm}.weight", (hidden,)
    recurrence = config.recurrence
    if isinstance(recurrence, Recurrence) and layer in recurrence.layers:
        for name, shape in recurrent_shapes(recurrence, hidden, family.recurrent_projections):
            yield RECURRENT + name, shape
        return
    if isinstance(attention, LatentConfig):
        for name, shape in latent_shapes(attention, read=hidden, hidden=hidden):
            yield f"self_attn.{name}", shape
        return
    query, key = attention.heads * attention.head_dim, attention.kv_heads * attention.head_dim
    query_rows = 2 * query if family.has_output_gate else query
    projections = zip(QKV, (query_rows, key, key), strict=True)
    if family.style.has_fused_projections:
        projections = zip((FUSED_QKV,), (query + 2 * key,), strict=True)
    for name, rows in projections:
        yield f"self_attn.{name}.weight", (rows, hidden)
        if family.has_qkv_bias:
            yield f"self_attn.{name}.bias", (rows,)
    if family.style.has_joint_head_norm:
        yield "self_attn.q_norm.weight", (query,)
        yield "self_attn.k_norm.weight", (key,)
    if family.style.has_head_layer_norm:
        yield "self_attn.q_norm.weight", (attention.heads, attention.head_dim)
        yield "self_attn.k_norm.weight", (attention.kv_heads, attention.head_dim)
    if family.has_head_norm:
        yield "self_attn.q_norm.weight", (attention.head_dim,)
        yield "self_attn.k_norm.weight", (attention.head_dim,)
    yield "self_attn.o_proj.weight", (hidden, query)
    if family.style.has_output_bias:
        yield "self_attn.o_proj.bias", (hidden,)
    if family.style.has_sinks:
        yield "self_attn.sinks", (attention.heads,)


def _feed_shapes(
    config: ModelConfig, layer: int, *, are_stacked: bool
) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, wide = config.block.hidden, config.block.intermediate
    experts = config.experts_at(layer)
    if isinstance(experts, ExpertsConfig):
        yield from expert_tensors(config, experts, are_stacked=are_stacked).shapes()
        if experts.has_bias:
            yield ROUTER_BIAS, (experts.num,)
        if experts.shared:
            yield from _dense_shapes(expert_family(config).names.shared, hidden, experts.shared)
        if experts.has_shared_gate:
            yield SHARED_GATE, (1, hidden)
        return
    style = config.family.style
    if style.has_fused_projections:
        yield f"{style.feed}.{FUSED_GATE_UP}", (2 * wide, hidden)
        yield f"{style.feed}.down_proj.weight", (hidden, wide)
        return
    yield from _dense_shapes(f"{style.feed}.", hidden, wide)


def _dense_shapes(block: str, hidden: int, wide: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{block}gate_proj.weight", (wide, hidden)
    yield f"{block}up_proj.weight", (wide, hidden)
    yield f"{block}down_proj.weight", (hidden, wide)


def expert_tensors(
    config: ModelConfig, experts: ExpertsConfig, *, are_stacked: bool
) -> ExpertTensors:
    sizes, family = sizes_of(experts, config.block.hidden), expert_family(config)
    if family.has_pairs:
        return StackedPairs(sizes) if are_stacked else PairedExperts(sizes)
    if are_stacked:
        is_transposed = family.stacked_axes != "out, in"
        return StackedExperts(sizes, family.names, is_transposed=is_transposed)
    return ApartExperts(sizes, family.names)


def expert_family(config: ModelConfig) -> ExpertFamily:
    family = config.family.experts
    assert isinstance(family, ExpertFamily), "a config with experts has a family with experts"
    return family


def layer_prefix(index: int) -> str:
    return f"model.layers.{index}."


def block_shapes(
    config: ModelConfig, *, layer: int, are_experts_stacked: bool
) -> dict[str, tuple[int, ...]]:
    """Names below the layer and shapes of the tensors of one layer."""
    shapes = tensor_shapes(config, are_experts_stacked=are_experts_stacked)
    return {
        name.removeprefix(layer_prefix(layer)): shape
        for name, shape in shapes.items()
        if name.startswith(layer_prefix(layer))
    }
