"""MXFP4 experts of gpt-oss: the blocks of all experts of a layer are one tensor, and so are scales.

They are read as one packed weight per expert.
"""

from collections.abc import Callable, Iterable
from functools import partial

import torch

from outrider.errors import ConfigError
from outrider.models.paired_experts import gates_first
from outrider.models.quantised.find_packed import PackedWeight, check_announced, check_type
from outrider.models.quantised.nibble_form import NibbleForm
from outrider.models.quantised.quantisation import Quantisation
from outrider.models.quantised.stored_kind import MX_GROUP

_BLOCKS, _SCALES = "_blocks", "_scales"
_BYTES = ("U8",)
_GATE_UP = "gate_up_proj"
_BLOCK_BYTES = MX_GROUP // 2


def find_expert_blocks(
    stored: Iterable[str],
    type_of: Callable[[str], str],
    shape_of: Callable[[str], tuple[int, ...]],
    quantisation: Quantisation,
) -> dict[str, PackedWeight]:
    """The packed weights by name, such as mlp.experts.3.down_proj.weight."""
    names, found = set(stored), {}
    for module, projection in sorted(_projections(names)):
        both = [f"{module}.{projection}{suffix}" for suffix in (_BLOCKS, _SCALES)]
        for name in both:
            if name not in names:
                raise ConfigError(
                    f"{name} of quantised experts is missing; download the model again"
                )
            check_announced(name, "mxfp4", quantisation)
            check_type(name, type_of(name), _BYTES)
        blocks, scales = map(shape_of, both)
        for expert in range(_num_experts(both[0], blocks, scales)):
            weight = f"{module}.{expert}.{projection}.weight"
            found[weight] = _packed(module, projection, expert)
    return found


def _projections(names: set[str]) -> set[tuple[str, str]]:
    """Module and projection of every tensor of blocks or scales."""
    parts = (name.rpartition(".") for name in names)
    return {
        (module, suffix.removesuffix(_BLOCKS).removesuffix(_SCALES))
        for module, _, suffix in parts
        if module.endswith(".experts") and suffix.endswith((_BLOCKS, _SCALES))
    }


def _num_experts(name: str, blocks: tuple[int, ...], scales: tuple[int, ...]) -> int:
    """From shapes [experts, rows, groups, bytes of a group] and [experts, rows, groups]."""
    if len(blocks) != 4 or blocks[3] != _BLOCK_BYTES:
        raise ConfigError(
            f"{name} has the shape {list(blocks)} instead of four sizes, the last of them "
            f"{_BLOCK_BYTES}; download the model again"
        )
    if scales != blocks[:3]:
        scale_name = name.removesuffix(_BLOCKS) + _SCALES
        raise ConfigError(
            f"{scale_name} has the shape {list(scales)} instead of {list(blocks[:3])}: {name} has "
            f"the shape {list(blocks)}; download the model again"
        )
    return blocks[0]


def _packed(module: str, projection: str, expert: int) -> PackedWeight:
    blocks, scales = projection + _BLOCKS, projection + _SCALES
    return PackedWeight(
        form=NibbleForm(blocks, scales, group=MX_GROUP),
        module=module,
        suffixes=(blocks, scales),
        pick=partial(_pick, expert=expert, has_pairs=projection == _GATE_UP),
    )


def _pick(suffix: str, stored: torch.Tensor, *, expert: int, has_pairs: bool) -> torch.Tensor:
    """The blocks or scales of one expert, [rows, columns]."""
    del suffix
    own = stored[expert].flatten(1)
    return gates_first(own, 0) if has_pairs else own
