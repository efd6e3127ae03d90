"""The `config_groups` of compressed-tensors: which tensors they announce."""

import re
from collections.abc import Mapping
from typing import Any

from outrider.errors import ConfigError
from outrider.models.quantised.stored_kind import StoredKind

_FORMATS: dict[str, tuple[StoredKind, ...]] = {
    "dense": (),
    "naive-quantized": ("fp8", "int8"),
    "float-quantized": ("fp8",),
    "int-quantized": ("int8",),
    "pack-quantized": ("words",),
    "nvfp4-pack-quantized": ("nvfp4",),
    "mxfp4-pack-quantized": ("mxfp4",),
    "mxfp8-quantized": ("mxfp8",),
}
_MIXED = "mixed-precision"  # every group has a format of its own


def announced_kinds(stored: Mapping[str, Any]) -> tuple[StoredKind, ...]:
    """The kinds of the formats that are named; all kinds if none is."""
    groups = [each.get("format") for each in _groups(stored)]
    named = [str(each) for each in (stored.get("format"), *groups) if each and each != _MIXED]
    for each in named:
        if each not in _FORMATS:
            raise ConfigError(
                f"weights stored by compressed-tensors as {each} are not read; use one of "
                f"{', '.join(_FORMATS)}"
            )
    chosen = named or list(_FORMATS)
    return tuple(dict.fromkeys(kind for each in chosen for kind in _FORMATS[each]))


def values_of_groups(stored: Mapping[str, Any], *fields: str) -> list[tuple[Any, ...]]:
    """These fields of the weights of every group that quantises weights."""
    weights = [each.get("weights") for each in _groups(stored)]
    return [
        tuple(_stated(each, field) for field in fields)
        for each in weights
        if isinstance(each, dict)
    ]


def block_of_groups(stored: Mapping[str, Any]) -> tuple[int, ...]:
    """The blocks that all groups with blocks have; () if none has."""
    found = {block_of(size) for (size,) in values_of_groups(stored, "block_structure")} - {()}
    if len(found) > 1:
        raise ConfigError(
            f"config.json has groups with different block_structure ({sorted(found)}), which are "
            "not read; use a folder with one size of blocks"
        )
    return found.pop() if found else ()


def block_of(size: object) -> tuple[int, ...]:
    """Rows and columns of an fp8 block; () if none is stated."""
    if not size:
        return ()
    if isinstance(size, str) and re.fullmatch(r"[1-9][0-9]*x[1-9][0-9]*", size):  # older files
        size = [int(each) for each in size.split("x")]
    sizes = size if isinstance(size, list) else []
    if len(sizes) != 2 or not all(isinstance(each, int) and each > 0 for each in sizes):
        raise ConfigError(f"config.json has blocks of {size}; two positive sizes are needed")
    return tuple(sizes)


def refuse_rotations(stored: Mapping[str, Any]) -> None:
    """Rotated weights need activations that are rotated while the model runs."""
    transforms = stored.get("transform_config")
    if isinstance(transforms, dict) and transforms.get("config_groups"):
        raise ConfigError(
            "config.json has a transform_config, and rotations of activations are not computed; "
            "use a folder that was quantised without transforms"
        )


def _groups(stored: Mapping[str, Any]) -> list[dict[str, Any]]:
    groups = stored.get("config_groups")
    if not isinstance(groups, dict):
        return []
    return [each for each in groups.values() if isinstance(each, dict)]


def _stated(weights: Mapping[str, Any], field: str) -> Any:
    """A field; the library's default where it counts."""
    return weights.get(field, "int" if field == "type" else None)
