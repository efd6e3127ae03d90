"""The share of a DeepSeek-V4 decoder that one rank computes: output groups with their query heads,
and columns of every expert.

The vectors of tokens, compressed entries, index heads and residual streams are whole on every rank,
so all ranks pick the same entries without a collective.
"""

from dataclasses import replace

from outrider.distributed.rank_group import RankGroup
from outrider.models.deepseek_v4.v4_config import V4Config
from outrider.models.deepseek_v4.v4_tensors import (
    ALSO_STORED,
    EMBEDDING,
    dspark_shapes,
    module_prefix,
    v4_module_shapes,
    v4_tensor_shapes,
)
from outrider.models.rank_cuts import RankCuts, StoredShapes
from outrider.models.rank_share import expert_columns_of, portion_of


def share_of_v4(config: V4Config, ranks: RankGroup) -> V4Config:
    """The part of a model that this rank computes."""
    return _share(config, ranks.rank, ranks.size)


def v4_cuts(config: V4Config, ranks: RankGroup) -> RankCuts:
    """Which part of every stored tensor this rank reads, of the decoder and of its drafter."""
    shares = [_stored(_share(config, rank, ranks.size)) for rank in range(ranks.size)]
    return RankCuts(_stored(config), shares, ranks.rank)


def _stored(config: V4Config) -> StoredShapes:
    prefix, table = module_prefix(0), (config.vocab_size, config.hidden)
    own = {prefix + ALSO_STORED[EMBEDDING]: table}
    draft = dspark_shapes(config, config.dspark) if config.dspark else {}
    shapes = v4_tensor_shapes(config) | v4_module_shapes(config, 0) | own | draft
    return StoredShapes(shapes=shapes, parts=lambda _: ())


def _share(config: V4Config, rank: int, size: int) -> V4Config:
    if size == 1:
        return config
    heads, feed = config.attention.heads, config.feed
    groups = portion_of(heads.output_groups, rank, size, "output groups (o_groups)")
    own = heads.heads // heads.output_groups * groups
    attention = replace(config.attention, heads=replace(heads, heads=own, output_groups=groups))
    columns = expert_columns_of(feed.intermediate, rank, size, group=feed.code_group)
    feed = replace(feed, intermediate=columns)
    return replace(config, attention=attention, feed=feed)
