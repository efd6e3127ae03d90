"""The share of a decoder that one rank computes: whole heads, and columns of every MLP.

The share is a config like that of a whole model, so the loader and the layers are the same. What a
rank reads of a stored tensor follows from the shapes that the config of every rank has.
"""

import logging
from dataclasses import replace

from outrider.distributed.rank_group import ONE_RANK, RankGroup
from outrider.errors import ConfigError
from outrider.models.decoder_tensors import stacked_parts, tensor_shapes
from outrider.models.expert_config import ExpertsConfig
from outrider.models.model_config import AnyAttention, LatentConfig, ModelConfig
from outrider.models.rank_cuts import RankCuts, StoredShapes
from outrider.models.recurrent.recurrence import Recurrence

_log = logging.getLogger(__name__)

# Channels of an MLP that stay together, the largest that fit: kernels read them in blocks.
_UNITS = (16, 8, 4)
_MOST_UNEVEN = 1.125  # the largest share of a rank, by an equal one, to keep groups of codes whole


def share_of(config: ModelConfig, ranks: RankGroup) -> ModelConfig:
    """The part of a model that this rank computes."""
    return _share(config, ranks.rank, ranks.size)


def check_share(config: ModelConfig, size: int) -> None:
    """Refuse a number of ranks that cannot share this model."""
    for rank in range(size):
        _share(config, rank, size)


def ranks_that_share(config: ModelConfig, ranks: RankGroup) -> RankGroup:
    """The ranks, or one rank if they cannot share this model. For draft models."""
    try:
        check_share(config, ranks.size)
    except ConfigError as error:
        _log.info("every rank computes the whole draft model: %s", error)
        return ONE_RANK
    return ranks


def decoder_cuts(config: ModelConfig, ranks: RankGroup, *, are_experts_stacked: bool) -> RankCuts:
    """Which part of every stored tensor this rank reads."""

    def stored(share: ModelConfig) -> StoredShapes:
        return StoredShapes(
            shapes=tensor_shapes(share, are_experts_stacked=are_experts_stacked),
            parts=lambda name: stacked_parts(share, name),
        )

    shares = [stored(_share(config, rank, ranks.size)) for rank in range(ranks.size)]
    return RankCuts(stored(config), shares, ranks.rank)


def _share(config: ModelConfig, rank: int, size: int) -> ModelConfig:
    if size == 1:
        return config
    block, experts, recurrence = config.block, config.experts, config.recurrence
    group = block.code_group
    if isinstance(experts, ExpertsConfig):
        experts = replace(
            experts,
            intermediate=expert_columns_of(experts.intermediate, rank, size, group=group),
            shared=columns_of(experts.shared, rank, size, group=group),
        )
    if isinstance(recurrence, Recurrence):
        heads = portion_of(recurrence.key_heads, rank, size, "key heads of recurrent layers")
        each = recurrence.value_heads // recurrence.key_heads
        recurrence = replace(recurrence, key_heads=heads, value_heads=heads * each)
    return replace(
        config,
        block=replace(block, intermediate=columns_of(block.intermediate, rank, size, group=group)),
        attention=_share_heads(config.attention, rank, size),
        experts=experts,
        recurrence=recurrence,
    )


def _share_heads(attention: AnyAttention, rank: int, size: int) -> AnyAttention:
    if isinstance(attention, LatentConfig):
        return replace(attention, heads=portion_of(attention.heads, rank, size, "attention heads"))
    heads, kv_heads = attention.heads, attention.kv_heads
    if kv_heads >= size:
        own = portion_of(kv_heads, rank, size, "key-value heads")
        return replace(attention, heads=own * (heads // kv_heads), kv_heads=own)
    if size % kv_heads or heads % size:
        raise ConfigError(
            f"{heads} attention heads with {kv_heads} key-value heads cannot be shared by {size} "
            f"ranks; use a tensor parallel size of at most {kv_heads}, or a multiple of it that "
            f"divides {heads}"
        )
    return replace(attention, heads=heads // size, kv_heads=1)


def columns_of(total: int, rank: int, size: int, *, group: int = 0) -> int:
    """Channels of an MLP, of which so many share a scale."""
    if not total:
        return 0
    units = _units(total, size, group, usual=(*_UNITS, 1))
    return _in_units(total, rank, size, units, "channels of an MLP")


def expert_columns_of(total: int, rank: int, size: int, *, group: int = 0) -> int:
    """Channels of every expert. Their kernels read several channels at a time."""
    units = _units(total, size, group, usual=_UNITS)
    return _in_units(total, rank, size, units, "blocks of channels of an expert")


def _units(total: int, size: int, group: int, *, usual: tuple[int, ...]) -> tuple[int, ...]:
    """Whole groups of codes if no rank gets many more channels than the others.

    A part of a group has a scale of its own, and kernels are slower with smaller groups.
    """
    if not group or total % group or total // group < size:
        return usual
    largest = group * -(-total // (group * size))
    return (group,) if largest * size <= _MOST_UNEVEN * total else usual


def _in_units(total: int, rank: int, size: int, units: tuple[int, ...], name: str) -> int:
    """In the largest units that give all ranks as much, or else of which there are enough."""
    fitting = [unit for unit in units if total % unit == 0 and total // unit >= size]
    even = [unit for unit in fitting if total // unit % size == 0]
    unit = (even or fitting or units[-1:])[0]
    return unit * portion_of(total // unit, rank, size, name)


def portion_of(total: int, rank: int, size: int, name: str) -> int:
    """An equal number for every rank; the first ranks have one more where it does not divide."""
    if total < size:
        raise ConfigError(
            f"{total} {name} cannot be shared by {size} ranks; use a tensor parallel size of at "
            f"most {total}"
        )
    return total // size + (rank < total % size)
