"""MXFP4 experts of gpt-oss: the blocks of all experts of a layer are one tensor, and so are scales.

They are read as one packed weight per expert.
"""

from collections.abc import Callable, Iterable
from functools import partial

import torch

from outrider.errors import ConfigError
from outrider.models.paired_experts import gates_first
from outrider.models.quantised.find_packed import PackedWeight
from outrider.models.quantised.packed_weights import NibbleForm

_BLOCKS, _SCALES = "_blocks", "_scales"
_GATE_UP = "gate_up_proj"
_NUM_AXES = {_BLOCKS: 4, _SCALES: 3}  # experts, rows, blocks, bytes of a block


def find_expert_blocks(
    stored: Iterable[str], shape_of: Callable[[str], tuple[int, ...]]
) -> dict[str, PackedWeight]:
    """The packed weights by name, such as mlp.experts.3.down_proj.weight."""
    names = set(stored)
    return {
        f"{module}.{expert}.{projection}.weight": _packed(module, projection, expert)
        for module, projection in sorted(_projections(names))
        for expert in range(_num_experts(f"{module}.{projection}", names, shape_of))
    }


def _projections(names: set[str]) -> set[tuple[str, str]]:
    """Module and projection of every tensor of blocks or scales."""
    parts = (name.rpartition(".") for name in names)
    return {
        (module, suffix.removesuffix(_BLOCKS).removesuffix(_SCALES))
        for module, _, suffix in parts
        if module.endswith(".experts") and suffix.endswith((_BLOCKS, _SCALES))
    }


def _num_experts(
    projection: str, names: set[str], shape_of: Callable[[str], tuple[int, ...]]
) -> int:
    shapes = []
    for suffix, num_axes in _NUM_AXES.items():
        name = projection + suffix
        shape = shape_of(name) if name in names else ()
        if len(shape) != num_axes:
            raise ConfigError(
                f"{name} of quantised experts is missing or has the wrong axes {list(shape)}; "
                "download the model again"
            )
        shapes.append(shape)
    blocks, scales = shapes
    if blocks[:3] != scales:
        raise ConfigError(
            f"{projection} has blocks of {list(blocks)} and scales of {list(scales)}, which do not "
            "belong together; download the model again"
        )
    return blocks[0]


def _packed(module: str, projection: str, expert: int) -> PackedWeight:
    blocks, scales = projection + _BLOCKS, projection + _SCALES
    return PackedWeight(
        NibbleForm(blocks, scales),
        (blocks, scales),
        module=module,
        pick=partial(_pick, expert=expert, has_pairs=projection == _GATE_UP),
    )


def _pick(stored: torch.Tensor, *, expert: int, has_pairs: bool) -> torch.Tensor:
    """The blocks or scales of one expert, [rows, columns]."""
    own = stored[expert].flatten(1)
    return gates_first(own, 0) if has_pairs else own
