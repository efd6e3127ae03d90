"""The share of a decoder that one rank computes: whole heads, and columns of every MLP.

The share is a config like that of a whole model, so the loader and the layers are the same. What a
rank reads of a stored tensor follows from the shapes that the config of every rank has.
"""

from collections.abc import Sequence
from dataclasses import replace

from outrider.distributed.rank_group import RankGroup
from outrider.errors import ConfigError
from outrider.models.decoder_tensors import stacked_parts, tensor_shapes
from outrider.models.expert_config import ExpertsConfig
from outrider.models.model_config import AnyAttention, LatentConfig, ModelConfig
from outrider.models.recurrent.recurrence import Recurrence
from outrider.models.tensor_cut import WHOLE, Cut

_UNIT = 16  # channels of an MLP that stay together where they can: kernels read them in blocks


def share_of(config: ModelConfig, ranks: RankGroup) -> ModelConfig:
    """The part of a model that this rank computes."""
    return _share(config, ranks.rank, ranks.size)


class RankCuts:
    """Tells which part of every stored tensor this rank reads."""

    def __init__(self, config: ModelConfig, ranks: RankGroup, *, are_experts_stacked: bool) -> None:
        self._rank = ranks.rank
        self._whole = _Shapes(config, are_experts_stacked)
        self._shares = [
            _Shapes(_share(config, rank, ranks.size), are_experts_stacked)
            for rank in range(ranks.size)
        ]

    def cut(self, name: str) -> Cut:
        if len(self._shares) == 1:
            return WHOLE
        whole, own = self._whole.shapes[name], self._shares[self._rank].shapes[name]
        dims = [dim for dim, size in enumerate(own) if size != whole[dim]]
        if not dims:
            return WHOLE
        (dim,) = dims
        shares = [share.parts(name, dim) for share in self._shares]
        return Cut(dim, _ranges(self._whole.parts(name, dim), shares, self._rank))


class _Shapes:
    """The tensors of a config, whole or a share."""

    def __init__(self, config: ModelConfig, are_experts_stacked: bool) -> None:
        self.shapes = tensor_shapes(config, are_experts_stacked=are_experts_stacked)
        self._config = config

    def parts(self, name: str, dim: int) -> Sequence[int]:
        return stacked_parts(self._config, name) or (self.shapes[name][dim],)


def _ranges(
    whole: Sequence[int], shares: Sequence[Sequence[int]], rank: int
) -> tuple[tuple[int, int], ...]:
    """Where the parts of one rank lie among the stored ones."""
    ranges, start = [], 0
    for part, size in enumerate(whole):
        sizes = [share[part] for share in shares]
        first = start + _first(sizes, rank, size)
        ranges.append((first, first + sizes[rank]))
        start += size
    return tuple(ranges)


def _first(sizes: Sequence[int], rank: int, total: int) -> int:
    """Where the part of one rank begins. With fewer heads than ranks, some ranks share one."""
    if sum(sizes) == total:
        return sum(sizes[:rank])
    own = sizes[rank]
    return rank * total // len(sizes) // own * own


def _share(config: ModelConfig, rank: int, size: int) -> ModelConfig:
    if size == 1:
        return config
    block, experts, recurrence = config.block, config.experts, config.recurrence
    if isinstance(experts, ExpertsConfig):
        experts = replace(
            experts,
            intermediate=_columns(experts.intermediate, rank, size),
            shared=_columns(experts.shared, rank, size),
        )
    if isinstance(recurrence, Recurrence):
        heads = _portion(recurrence.key_heads, rank, size, "key heads of recurrent layers")
        group = recurrence.value_heads // recurrence.key_heads
        recurrence = replace(recurrence, key_heads=heads, value_heads=heads * group)
    return replace(
        config,
        block=replace(block, intermediate=_columns(block.intermediate, rank, size)),
        attention=_share_heads(config.attention, rank, size),
        experts=experts,
        recurrence=recurrence,
    )


def _share_heads(attention: AnyAttention, rank: int, size: int) -> AnyAttention:
    if isinstance(attention, LatentConfig):
        return replace(attention, heads=_portion(attention.heads, rank, size, "attention heads"))
    heads, kv_heads = attention.heads, attention.kv_heads
    if kv_heads >= size:
        own = _portion(kv_heads, rank, size, "key-value heads")
        return replace(attention, heads=own * (heads // kv_heads), kv_heads=own)
    if size % kv_heads or heads % size:
        raise ConfigError(
            f"{heads} attention heads with {kv_heads} key-value heads cannot be shared by {size} "
            f"ranks; use a tensor parallel size of at most {kv_heads}, or a multiple of it that "
            f"divides {heads}"
        )
    return replace(attention, heads=heads // size, kv_heads=1)


def _columns(total: int, rank: int, size: int) -> int:
    """Channels of an MLP, in whole units if there are enough of them."""
    if not total:
        return 0
    unit = _UNIT if total % _UNIT == 0 and total // _UNIT >= size else 1
    return unit * _portion(total // unit, rank, size, "channels of an MLP")


def _portion(total: int, rank: int, size: int, name: str) -> int:
    """An equal number for every rank; the first ranks have one more where it does not divide."""
    if total < size:
        raise ConfigError(
            f"{total} {name} cannot be shared by {size} ranks; use a tensor parallel size of at "
            f"most {total}"
        )
    return total // size + (rank < total % size)
