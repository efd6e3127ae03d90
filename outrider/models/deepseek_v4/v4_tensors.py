"""The tensors of a DeepSeek-V4 folder by the names of the hub, and their names in transformers."""

from collections.abc import Iterable, Iterator

from outrider.models.deepseek_v4.compression import CompressedBlocks, NoBlocks
from outrider.models.deepseek_v4.dspark_config import V4DSparkConfig
from outrider.models.deepseek_v4.v4_config import V4Config
from outrider.models.dflash.dflash_tensors import CONFIDENCE, MARKOV_FROM, MARKOV_TO
from outrider.models.family import ExpertNames

EMBEDDING, NORM, HEAD = "embed.weight", "norm.weight", "head.weight"
EXPERTS = ExpertNames(block="ffn", gate="w1", up="w3", down="w2")
TABLE = "ffn.gate.tid2eid"
# Tensors of the target that a module may store again; most such modules store a copy.
ALSO_STORED = {EMBEDDING: "emb.tok_emb.weight", HEAD: "head.weight"}

# Of a DSpark drafter: from states of the target to the context of its first layer.
MAIN_PROJECTION, MAIN_NORM = "main_proj.weight", "main_norm.weight"

Shape = tuple[int, ...]


def hub_name(stored: str) -> str:
    """The hub's name of a tensor."""
    name = stored.removeprefix("model.")
    name = name.replace(".attn.norm.", ".attn.kv_norm.").replace("hc_head.hc_", "hc_head_")
    whole = {"embed_tokens.weight": EMBEDDING, "lm_head.weight": HEAD}
    return whole.get(name, name)


def stored_names(stored: Iterable[str]) -> dict[str, str]:
    """The stored name of each tensor of the decoder, by the hub's name."""
    names = {hub_name(name): name for name in stored}
    return {name: found for name, found in names.items() if not name.startswith("mtp.")}


def stored_modules(stored: Iterable[str]) -> dict[str, str]:
    """The stored names of the tensors of draft modules, by the hub's name."""
    return {hub_name(name): name for name in stored if hub_name(name).startswith("mtp.")}


def v4_tensor_shapes(config: V4Config) -> dict[str, Shape]:
    """Name and shape of every tensor that the folder of such a model must hold."""
    hidden, streams = config.hidden, config.streams.num
    shapes: dict[str, Shape] = {
        EMBEDDING: (config.vocab_size, hidden),
        NORM: (hidden,),
        HEAD: (config.vocab_size, hidden),
        "hc_head_fn": (streams, streams * hidden),
        "hc_head_base": (streams,),
        "hc_head_scale": (1,),
    }
    for index in range(config.num_layers):
        kind, is_hashed = config.attention.layers[index], index in config.feed.hashed
        parts = (_attention(config, kind), _streams(config), _feed(config, is_hashed=is_hashed))
        shapes |= {f"layers.{index}.{name}": shape for part in parts for name, shape in part}
    return shapes


def module_prefix(index: int) -> str:
    return f"mtp.{index}."


def v4_module_shapes(config: V4Config, index: int) -> dict[str, Shape]:
    """Name and shape of every tensor of a draft module.

    Embedding and head are the target's, unless the folder stores others.
    """
    hidden, prefix = config.hidden, module_prefix(index)
    own: dict[str, Shape] = {
        "enorm.weight": (hidden,),
        "hnorm.weight": (hidden,),
        "e_proj.weight": (hidden, hidden),
        "h_proj.weight": (hidden, hidden),
    }
    own |= _draft_layer(config) | _draft_output(config)
    return {prefix + name: shape for name, shape in own.items()}


def dspark_shapes(config: V4Config, dspark: V4DSparkConfig) -> dict[str, Shape]:
    """Name and shape of every tensor of a DSpark drafter. Embedding and head are the target's."""
    hidden, rank, vocab = config.hidden, dspark.markov_rank, config.vocab_size
    first: dict[str, Shape] = {
        MAIN_PROJECTION: (hidden, hidden * len(dspark.layers)),
        MAIN_NORM: (hidden,),
    }
    last: dict[str, Shape] = {
        **_draft_output(config),
        MARKOV_FROM: (vocab, rank),
        MARKOV_TO: (vocab, rank),
        f"{CONFIDENCE}.weight": (1, hidden + rank),
    }
    stages = [_draft_layer(config) for _ in range(dspark.num_stages)]
    stages[0] |= first
    stages[-1] |= last
    return {
        module_prefix(stage) + name: shape
        for stage, own in enumerate(stages)
        for name, shape in own.items()
    }


def _draft_layer(config: V4Config) -> dict[str, Shape]:
    """A layer of a drafter: it reads its window alone, and routes by its input."""
    parts = (_attention(config, NoBlocks()), _streams(config), _feed(config, is_hashed=False))
    return {name: shape for part in parts for name, shape in part}


def _draft_output(config: V4Config) -> dict[str, Shape]:
    """What makes one normalised state of a drafter's streams."""
    hidden, streams = config.hidden, config.streams.num
    return {
        NORM: (hidden,),
        "hc_head_fn": (streams, streams * hidden),
        "hc_head_base": (streams,),
        "hc_head_scale": (1,),
    }


def integer_names(config: V4Config) -> set[str]:
    """Tensors that hold expert ids instead of weights."""
    return {f"layers.{index}.{TABLE}" for index in config.feed.hashed}


def _attention(
    config: V4Config, blocks: CompressedBlocks | NoBlocks
) -> Iterator[tuple[str, Shape]]:
    heads, hidden = config.attention.heads, config.hidden
    wide, groups = heads.heads * heads.head_dim, heads.output_groups
    yield "attn_norm.weight", (hidden,)
    yield "attn.wq_a.weight", (heads.query_rank, hidden)
    yield "attn.q_norm.weight", (heads.query_rank,)
    yield "attn.wq_b.weight", (wide, heads.query_rank)
    yield "attn.wkv.weight", (heads.head_dim, hidden)
    yield "attn.kv_norm.weight", (heads.head_dim,)
    yield "attn.attn_sink", (heads.heads,)
    yield "attn.wo_a.weight", (groups * heads.output_rank, wide // groups)
    yield "attn.wo_b.weight", (hidden, groups * heads.output_rank)
    if isinstance(blocks, CompressedBlocks):
        yield from _compressor("attn.compressor.", blocks, heads.head_dim, hidden)
    if isinstance(blocks, CompressedBlocks) and blocks.index_width:
        sizes = config.attention.index
        yield from _compressor("attn.indexer.compressor.", blocks, sizes.head_dim, hidden)
        yield "attn.indexer.wq_b.weight", (sizes.heads * sizes.head_dim, heads.query_rank)
        yield "attn.indexer.weights_proj.weight", (sizes.heads, hidden)


def _compressor(
    prefix: str, blocks: CompressedBlocks, width: int, hidden: int
) -> Iterator[tuple[str, Shape]]:
    channels = width * (2 if blocks.is_overlapping else 1)
    yield prefix + "wkv.weight", (channels, hidden)
    yield prefix + "wgate.weight", (channels, hidden)
    yield prefix + "ape", (blocks.ratio, channels)
    yield prefix + "norm.weight", (width,)


def _streams(config: V4Config) -> Iterator[tuple[str, Shape]]:
    num = config.streams.num
    for part in ("attn", "ffn"):
        yield f"hc_{part}_fn", ((2 + num) * num, num * config.hidden)
        yield f"hc_{part}_base", ((2 + num) * num,)
        yield f"hc_{part}_scale", (3,)


def _feed(config: V4Config, *, is_hashed: bool) -> Iterator[tuple[str, Shape]]:
    feed, hidden = config.feed, config.hidden
    yield "ffn_norm.weight", (hidden,)
    yield "ffn.gate.weight", (feed.num, hidden)
    if is_hashed:
        yield TABLE, (config.vocab_size, feed.routing.top_k)
    else:
        yield "ffn.gate.bias", (feed.num,)
    for part in (*(f"experts.{expert}" for expert in range(feed.num)), "shared_experts"):
        yield f"ffn.{part}.w1.weight", (feed.intermediate, hidden)
        yield f"ffn.{part}.w3.weight", (feed.intermediate, hidden)
        yield f"ffn.{part}.w2.weight", (hidden, feed.intermediate)
