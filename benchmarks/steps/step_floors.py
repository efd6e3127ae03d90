"""The least time of a step, an iteration or a prefill, from its bytes and its multiplications.

Each matrix is read once, or multiplied for as long as the matrix rate allows, whichever takes
longer. Of the experts a step reads those that its tokens are routed to, on average. The KV of every
row is read once (of latents one vector per token), or attended to for as long as the matrix rate
allows, whichever takes longer. Launches, norms and sampling cost nothing here.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarks.dummy_models import dummy_block_config, dummy_head_config, head_shapes
from benchmarks.steps.block_args import BlockShape
from benchmarks.steps.device_rates import DeviceRates
from benchmarks.steps.v4_flops import (
    v4_cache_flops,
    v4_flops_of,
    v4_prefill_flops,
    v4_step_flops,
)
from outrider.bench.offline.decode_floor import (
    activation_bytes,
    is_of_expert,
    seen_tokens,
    selected_share,
    tensor_bytes,
    weight_bytes,
)
from outrider.bench.offline.step_bytes import step_bytes
from outrider.bench.offline.v4_bytes import (
    v4_bytes_of,
    v4_cache_bytes,
    v4_held_bytes,
    v4_step_bytes,
)
from outrider.config.engine_config import Dtype
from outrider.models.decoder_tensors import block_shapes, tensor_shapes
from outrider.models.deepseek_v4.compression import NoBlocks
from outrider.models.deepseek_v4.v4_config import V4Config
from outrider.models.deepseek_v4.v4_tensors import v4_module_shapes
from outrider.models.dflash.dflash_tensors import MARKOV_TO
from outrider.models.eagle.head_tensors import HEAD, TO_TARGET, expected_tensors
from outrider.models.model_config import AnyAttention, LatentConfig, ModelConfig

_EMBEDDING = "model.embed_tokens.weight"
_TARGET_HEAD = "lm_head.weight"
_AUX_HIDDEN = "fc.weight"

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One run of query tokens through some matrices over the KV of their rows."""

    weight_bytes: int
    kv_bytes: int
    flops: float  # of the matrices
    kv_flops: float  # of attention

    def seconds(self, rates: DeviceRates) -> float:
        matrices = max(self.weight_bytes / rates.bandwidth, self.flops / rates.matrix)
        return matrices + max(self.kv_bytes / rates.bandwidth, self.kv_flops / rates.matrix)


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftShape:
    """The draft rounds of an iteration."""

    vocab: int  # tokens the head can propose
    steps: int
    topk: int
    nodes: int
    emitted: float  # tokens per row and round, on average


def step_passes(
    config: ModelConfig | V4Config, dtype: Dtype, *, rows: int, nodes: int, context: float
) -> tuple[Pass, ...]:
    """A step of `rows` trees of `nodes` query tokens; one node is plain decoding."""
    read = step_bytes(config, dtype, rows=rows, nodes=nodes, context=context)
    flops, kv_flops = _step_flops(config, tokens=rows * nodes, context=context)
    return (Pass(weight_bytes=read.weights, kv_bytes=read.kv, flops=flops, kv_flops=kv_flops),)


def mixed_passes(
    config: ModelConfig | V4Config,
    dtype: Dtype,
    *,
    rows: int,
    nodes: int,
    context: float,
    prompts: tuple[int, ...],  # tokens of each
) -> tuple[Pass, ...]:
    """A step of decode rows that also reads whole prompts; these need logits of their last token.

    The matrices are read once for all. A prompt reads no KV that it does not write itself.
    """
    (decode,) = step_passes(config, dtype, rows=rows, nodes=nodes, context=context)
    tokens = rows * nodes + sum(prompts)
    (alike,) = step_passes(config, dtype, rows=tokens, nodes=1, context=0.0)
    hidden = config.hidden if isinstance(config, V4Config) else config.block.hidden
    spared = 2.0 * (sum(prompts) - len(prompts)) * config.vocab_size * hidden
    reading = (_step_flops(config, tokens=each, context=each / 2)[1] for each in prompts)
    return (
        replace(
            decode,
            weight_bytes=alike.weight_bytes,
            flops=alike.flops - spared,
            kv_flops=decode.kv_flops + sum(reading),
        ),
    )


def iteration_passes(
    config: ModelConfig | V4Config, dtype: Dtype, draft: DraftShape, *, rows: int, context: float
) -> tuple[Pass, ...]:
    """Verify, then catch up on what was emitted, then draft: the head scores once per step.

    Catching up yields the state of the first draft, so a round of n steps runs the layer n - 1
    times more, on `topk` branches of every row.
    """
    assert isinstance(config, ModelConfig), (
        "a head reads one residual stream, and DeepSeek-V4 was refused at start"
    )
    shapes = _head_groups(config, draft)
    own = dummy_head_config(config, draft_vocab=draft.vocab).layer.attention
    kv = _KVRead(attention=own, rows=rows, context=context)
    emitted, branches = rows * draft.emitted, rows * draft.topk
    return (
        *step_passes(config, dtype, rows=rows, nodes=draft.nodes, context=context),
        _linears(shapes.aux_hidden_states, dtype, tokens=emitted),
        _layer(shapes.layer, dtype, kv, tokens=emitted),
        _linears(shapes.score, dtype, tokens=rows),
        *(_layer(shapes.layer, dtype, kv, tokens=branches) for _ in range(1, draft.steps)),
        *(_linears(shapes.score, dtype, tokens=branches) for _ in range(1, draft.steps)),
    )


def block_passes(
    config: ModelConfig, dtype: Dtype, shape: BlockShape, *, rows: int, context: float
) -> tuple[Pass, ...]:
    """Verify, write the context of the emitted tokens, run the block, score its slots.

    Keys and values of all layers are projected from the emitted tokens. Slots run in one pass over
    the KV of every layer. With a Markov head, each step reads its table of successors.
    """
    head, tree = dummy_block_config(config, shape), shape.tree
    shapes = expected_tensors(head, target_hidden=head.aux.target_hidden).needed
    layers = [each for name, each in shapes.items() if name.startswith("layers.")]
    context_names = (_AUX_HIDDEN, "k_proj.weight", "v_proj.weight")
    context_shapes = [each for name, each in shapes.items() if name.endswith(context_names)]
    kv = _KVRead(attention=head.layer.attention, rows=rows * shape.layers, context=context)
    slots, branches = rows * shape.slots, rows * (tree.topk if tree.topk > 1 else 1)
    score = (config.vocab_size, config.block.hidden)
    markov = [shapes[MARKOV_TO]] if MARKOV_TO in shapes else []
    block = _linears(layers, dtype, tokens=slots)
    return (
        *step_passes(config, dtype, rows=rows, nodes=tree.nodes, context=context),
        _linears(context_shapes, dtype, tokens=rows * tree.mean_emitted),
        replace(
            block,
            kv_bytes=kv.num_bytes(dtype),
            kv_flops=shape.layers * _kv_flops(head.layer.attention, slots, context),
        ),
        _linears([score], dtype, tokens=rows * tree.steps),
        *(_linears([each], dtype, tokens=branches) for each in markov for _ in range(tree.steps)),
    )


def module_passes(
    config: ModelConfig | V4Config, dtype: Dtype, draft: DraftShape, *, rows: int, context: float
) -> tuple[Pass, ...]:
    """Verify, then a module and the target's head for every step.

    At least the first module runs the emitted tokens, and the others one token for each branch.
    """
    tokens = [draft.emitted, *[draft.topk] * (draft.steps - 1)]
    if isinstance(config, V4Config):
        head = ((config.vocab_size, config.hidden),)
        return (
            *step_passes(config, dtype, rows=rows, nodes=draft.nodes, context=context),
            *(
                _v4_module(config, dtype, rows, tokens=rows * each, context=context)
                for each in tokens
            ),
            *(_linears(head, dtype, tokens=rows) for _ in tokens),
        )
    kv = _KVRead(attention=config.attention, rows=rows, context=context)
    head = ((config.vocab_size, config.block.hidden),)
    return (
        *step_passes(config, dtype, rows=rows, nodes=draft.nodes, context=context),
        *(_module_pass(config, dtype, kv, tokens=rows * each) for each in tokens),
        *(_linears(head, dtype, tokens=rows) for _ in tokens),
    )


def total_s(passes: Iterable[Pass], rates: DeviceRates) -> float:
    """The passes one after another."""
    return sum(each.seconds(rates) for each in passes)


def prefill_flops(config: ModelConfig | V4Config, *, tokens: int) -> float:
    """Multiplications and additions of one prompt: matrices, and attention to what came before.

    Logits are needed of the last token alone.
    """
    if isinstance(config, V4Config):
        return v4_prefill_flops(config, tokens=tokens)
    shapes = tensor_shapes(config)
    head = shapes.pop(_TARGET_HEAD, shapes[_EMBEDDING])
    del shapes[_EMBEDDING]
    reaches = [config.pattern.reach_at(layer) for layer in config.attending]
    attention = _kv_flops(config.attention, sum(_seen_pairs(tokens, each) for each in reaches), 1.0)
    return 2.0 * (tokens * _products_of_token(config, shapes) + _num_products([head])) + attention


def read_bytes(config: ModelConfig | V4Config, dtype: Dtype) -> int:
    """Bytes of all weights that a step of one token reads."""
    if isinstance(config, V4Config):
        return v4_step_bytes(config, dtype, tokens=1.0)
    return weight_bytes(config, dtype, tokens=1.0)


def held_bytes(config: ModelConfig | V4Config, dtype: Dtype) -> int:
    """Bytes of all weights, the embedding of an untied model included, which no step reads."""
    if isinstance(config, V4Config):
        return v4_held_bytes(config, dtype)
    embedding = tensor_bytes(tensor_shapes(config)[_EMBEDDING], dtype)
    return weight_bytes(config, dtype) + (0 if config.is_tied else embedding)


@dataclass(frozen=True, slots=True, kw_only=True)
class _HeadGroups:
    """The matrices and norms of a head by how often an iteration runs them."""

    aux_hidden_states: tuple[Shape, ...]
    layer: tuple[Shape, ...]
    score: tuple[Shape, ...]


def _head_groups(config: ModelConfig, draft: DraftShape) -> _HeadGroups:
    shapes = head_shapes(dummy_head_config(config, draft_vocab=draft.vocab))
    own = {_AUX_HIDDEN, HEAD, TO_TARGET}  # the table of ids is no weight
    return _HeadGroups(
        aux_hidden_states=(shapes[_AUX_HIDDEN],),
        layer=tuple(shape for name, shape in shapes.items() if name not in own),
        # A head with the whole vocabulary uses the target's lm_head.
        score=(shapes.get(HEAD, (config.vocab_size, config.block.hidden)),),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _KVRead:
    """The KV of one layer that a pass attends to."""

    attention: AnyAttention
    rows: int
    context: float

    def num_bytes(self, dtype: Dtype) -> int:
        width = self.attention.vectors * self.attention.width
        return round(self.rows * self.context * width * activation_bytes(dtype))

    def flops(self, tokens: float) -> float:
        return _kv_flops(self.attention, tokens, self.context)


def _linears(shapes: Sequence[Shape], dtype: Dtype, *, tokens: float) -> Pass:
    return Pass(
        weight_bytes=sum(tensor_bytes(shape, dtype) for shape in shapes),
        kv_bytes=0,
        flops=2.0 * tokens * _num_products(shapes),
        kv_flops=0.0,
    )


def _layer(shapes: Sequence[Shape], dtype: Dtype, kv: _KVRead, *, tokens: float) -> Pass:
    linears = _linears(shapes, dtype, tokens=tokens)
    return replace(linears, kv_bytes=kv.num_bytes(dtype), kv_flops=kv.flops(tokens))


def _v4_module(config: V4Config, dtype: Dtype, rows: int, *, tokens: float, context: float) -> Pass:
    shapes = v4_module_shapes(config, 0)
    window = replace(config, attention=replace(config.attention, layers=(NoBlocks(),)))
    return Pass(
        weight_bytes=v4_bytes_of(config, shapes, dtype, tokens=tokens),
        kv_bytes=v4_cache_bytes(window, dtype, rows=rows, context=context),
        flops=v4_flops_of(config, shapes, tokens=tokens),
        kv_flops=v4_cache_flops(window, tokens=tokens, context=context),
    )


def _step_flops(
    config: ModelConfig | V4Config, *, tokens: int, context: float
) -> tuple[float, float]:  # of the linears, of attention
    if isinstance(config, V4Config):
        return (
            v4_step_flops(config, tokens=tokens),
            v4_cache_flops(config, tokens=tokens, context=context),
        )
    shapes = tensor_shapes(config)
    if not config.is_tied:
        del shapes[_EMBEDDING]  # a step looks up one row of it per token
    return (
        2.0 * tokens * _products_of_token(config, shapes),
        _kv_flops(config.attention, tokens, seen_tokens(config, context)),
    )


def _module_pass(config: ModelConfig, dtype: Dtype, kv: _KVRead, *, tokens: float) -> Pass:
    """The join, and a layer like the target's last attending one, with its selected experts."""
    hidden, last = config.block.hidden, config.attending[-1]
    shapes: dict[str, Shape] = block_shapes(
        config.of_modules, layer=last, are_experts_stacked=False
    )
    shapes |= {"join": (hidden, 2 * hidden)}
    shapes |= {f"norm {index}": (hidden,) for index in range(3)}
    share = {True: selected_share(config.experts, tokens), False: 1.0}
    read = sum(
        tensor_bytes(each, dtype) * share[is_of_expert(name)] for name, each in shapes.items()
    )
    return Pass(
        weight_bytes=round(read),
        kv_bytes=kv.num_bytes(dtype),
        flops=2.0 * tokens * _products_of_token(config, shapes),
        kv_flops=kv.flops(tokens),
    )


def _products_of_token(config: ModelConfig, shapes: Mapping[str, Shape]) -> float:
    """Products that one token needs, with the experts that it is routed to."""
    experts = _num_products(shape for name, shape in shapes.items() if is_of_expert(name))
    return _num_products(shapes.values()) - experts * (1.0 - selected_share(config.experts, 1.0))


def _num_products(shapes: Iterable[Shape]) -> int:
    """Products of all matrices with one vector; norms do not count."""
    return sum(shape[0] * shape[1] for shape in shapes if len(shape) == 2)


def _seen_pairs(tokens: int, reach: int) -> float:
    """Pairs of a token of a prompt and one that it sees: itself, and those in its window."""
    width = min(tokens, reach)
    return width * (width + 1) / 2 + (tokens - width) * width


def _kv_flops(attention: AnyAttention, tokens: float, context: float) -> float:
    """Operations of one layer, all heads: the scores, and the sums of values."""
    if isinstance(attention, LatentConfig):
        width = attention.heads * (attention.width + attention.latent)
    else:
        width = attention.heads * 2 * attention.head_dim
    return 2.0 * width * tokens * context
