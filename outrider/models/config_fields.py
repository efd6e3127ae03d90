"""The fields of a config.json, and values among them that must be there and of a kind."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outrider.errors import ConfigError


def read_fields(folder: Path) -> dict[str, Any]:
    """What the config.json of a model or a head says, as it stands there."""
    path = folder / "config.json"
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read ({error}); pass a Hugging Face folder") from error
    if not isinstance(fields, dict):
        raise ConfigError(f"{path} is not a JSON object; download the folder again")
    return fields


def read_size(fields: Mapping[str, Any], key: str) -> int:
    value = fields.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"config.json needs a positive integer {key}, got {value}; fix the field")
    return value


def read_size_or(fields: Mapping[str, Any], key: str, default: int) -> int:
    """The default stands for a field that is absent or null."""
    return default if fields.get(key) is None else read_size(fields, key)


def read_number_or(fields: Mapping[str, Any], key: str, default: int = 0) -> int:
    """The same, but the number may be zero."""
    return 0 if fields.get(key) == 0 else read_size_or(fields, key, default)


def read_object(fields: Mapping[str, Any], key: str) -> dict[str, Any]:
    """A copy of the settings under a key; none where it is absent or null."""
    value = fields.get(key)
    if not isinstance(value, dict | None):
        raise ConfigError(f"config.json needs an object {key}, got {value}; fix the field")
    return dict(value or {})


def read_list(fields: Mapping[str, Any], key: str) -> list[Any]:
    """A copy of the items under a key; none where it is absent or null."""
    value = fields.get(key)
    if not isinstance(value, list | tuple | None):  # bodies of benchmarks are written in Python
        raise ConfigError(f"config.json needs a list {key}, got {value}; fix the field")
    return list(value or ())


def read_real(fields: Mapping[str, Any], key: str) -> float:
    value = fields.get(key)
    if (
        not isinstance(value, int | float)
        or isinstance(value, bool)
        or not 0 < value < math.inf  # JSON as Python reads it has NaN and Infinity
    ):
        raise ConfigError(f"config.json needs a positive number {key}, got {value}; fix the field")
    return float(value)


def read_real_or(fields: Mapping[str, Any], key: str, default: float) -> float:
    """The default stands for a field that is absent or null."""
    return default if fields.get(key) is None else read_real(fields, key)
