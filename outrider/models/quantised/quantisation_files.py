"""Where a folder says how its weights are quantised: config.json, or a file beside it."""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outrider.errors import ConfigError
from outrider.models.config_fields import read_fields
from outrider.models.quantised.quantisation import (
    NOT_QUANTISED,
    Quantisation,
    parse_quantisation,
)

_IN_CONFIG = ("quantization_config", "compression_config")  # the second: old compressed-tensors
# The files that exporters wrote before config.json had the field.
SIDE_FILES = ("hf_quant_config.json", "quantize_config.json", "quant_config.json")

_log = logging.getLogger(__name__)


def read_quantisation(folder: Path) -> Quantisation:
    """The quantisation of a model folder; `NOT_QUANTISED` where nothing states one.

    config.json comes first, as in vLLM.
    """
    stored = quantisation_in(read_fields(folder)) if (folder / "config.json").is_file() else None
    try:
        return parse_quantisation(stored) if stored is not None else _read_side_file(folder)
    except ConfigError as error:
        raise ConfigError(f"{folder}: {error}") from error


def quantisation_in(fields: Mapping[str, Any]) -> object:
    """What config.json states, outside or inside of its text model; None if nothing."""
    inner = fields.get("text_config")
    for place in (fields, inner if isinstance(inner, dict) else {}):
        for name in _IN_CONFIG:
            if place.get(name):
                return place[name]
    return None


def _read_side_file(folder: Path) -> Quantisation:
    for name in SIDE_FILES:
        if (folder / name).is_file():
            fields = _read_json(folder / name)
            found = parse_quantisation({"quant_method": _method(name, fields), **fields})
            _log.info("%s says how the weights are quantised: %s", name, found.method)
            return found
    return NOT_QUANTISED


def _method(name: str, fields: dict[str, Any]) -> str:
    """The method that a file has if it does not name one."""
    if name == "hf_quant_config.json":
        return "modelopt"
    is_awq = name == "quant_config.json" or "w_bit" in fields or "zero_point" in fields
    return "awq" if is_awq else "gptq"


def _read_json(path: Path) -> dict[str, Any]:
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path.name} cannot be read ({error}); download it again") from error
    if not isinstance(fields, dict):
        raise ConfigError(f"{path.name} must hold an object; download it again")
    return fields
