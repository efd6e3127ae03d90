"""Reads config.json, and checks the presence and type of its fields."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outrider.errors import ConfigError

MOST_SIZE = 2**31 - 1  # of one axis of a tensor, and of a context
# Tables of layers and of tensor names are built before the weights are read.
MOST_LAYERS = 10_000
_MOST_EXPERTS = 1_000_000  # of all layers together


def read_fields(folder: Path) -> dict[str, Any]:
    """The config.json of a model or a head, unchanged."""
    path = folder / "config.json"
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read ({error}); pass a Hugging Face folder") from error
    if not isinstance(fields, dict):
        raise ConfigError(f"{path} is not a JSON object; download the folder again")
    return fields


def read_size(fields: Mapping[str, Any], key: str, *, most: int = MOST_SIZE) -> int:
    value = fields.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"config.json needs a positive integer {key}, got {value}; fix the field")
    if value > most:
        raise ConfigError(
            f"config.json has a {key} above {most}, which no model has; fix the field"
        )
    return value


def check_experts(num: int, num_layers: int) -> None:
    """Refuse more experts than any model has: every one of them has tensors with names."""
    if num * num_layers > _MOST_EXPERTS:
        raise ConfigError(
            f"config.json has {num} experts in {num_layers} layers, more than any model has; "
            "fix the number of experts"
        )


def read_size_or(fields: Mapping[str, Any], key: str, default: int) -> int:
    """The integer of a field, or the default if the field is absent or null."""
    return default if fields.get(key) is None else read_size(fields, key)


def read_number_or(fields: Mapping[str, Any], key: str, default: int = 0) -> int:
    """As `read_size_or`, but the number may be zero."""
    return 0 if fields.get(key) == 0 else read_size_or(fields, key, default)


def read_object(fields: Mapping[str, Any], key: str) -> dict[str, Any]:
    """A copy of the object under a key; empty if the field is absent or null."""
    value = fields.get(key)
    if not isinstance(value, dict | None):
        raise ConfigError(f"config.json needs an object {key}, got {value}; fix the field")
    return dict(value or {})


def read_list(fields: Mapping[str, Any], key: str) -> list[Any]:
    """A copy of the list under a key; empty if the field is absent or null."""
    value = fields.get(key)
    if not isinstance(
        value, list | tuple | None
    ):  # configs of benchmarks are Python objects with tuples
        raise ConfigError(f"config.json needs a list {key}, got {value}; fix the field")
    return list(value or ())


def read_real(fields: Mapping[str, Any], key: str) -> float:
    value = fields.get(key)
    if (
        not isinstance(value, int | float)
        or isinstance(value, bool)
        or not 0 < value < math.inf  # the json module of Python reads NaN and Infinity
    ):
        raise ConfigError(f"config.json needs a positive number {key}, got {value}; fix the field")
    return float(value)


def read_real_or(fields: Mapping[str, Any], key: str, default: float) -> float:
    """The number of a field, or the default if the field is absent or null."""
    return default if fields.get(key) is None else read_real(fields, key)
