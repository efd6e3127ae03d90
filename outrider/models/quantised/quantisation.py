"""What config.json says about quantised weights. The stored tensors decide; lists must agree."""

import fnmatch
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider.errors import ConfigError
from outrider.models.config_fields import read_fields

_METHODS = ("fp8", "fbgemm_fp8", "compressed-tensors", "modelopt", "mxfp4", "gptq", "awq")
_LISTS = ("modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules")
_BLOCK = (128, 128)  # rows and columns that share an fp8 scale


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantisation:
    """The fields that the layout of stored tensors does not tell by itself."""

    method: str
    block: tuple[int, int] = _BLOCK
    bits: int = 4  # of packed integers
    zero_offset: int = 0  # GPTQ of version 1 stores zero points less one
    unquantised: tuple[str, ...] = ()  # modules that are not quantised, as config.json lists them

    def keeps(self, module: str) -> bool:
        """Whether the lists name this module as not quantised."""
        return any(self._names(pattern, module) for pattern in self.unquantised)

    def _names(self, pattern: str, module: str) -> bool:
        if pattern.startswith("re:"):
            try:
                return re.match(pattern[3:], module) is not None
            except re.error as error:
                raise ConfigError(f"config.json has a wrong pattern {pattern!r}: {error}") from None
        if self.method == "modelopt":
            return fnmatch.fnmatch(module, pattern)
        if self.method == "awq":  # part of a path: "gate" does not name gate_proj
            return f".{pattern}." in f".{module}."
        return module == pattern or module.startswith(pattern + ".")


NOT_QUANTISED = Quantisation(method="")


def read_quantisation(folder: Path) -> Quantisation:
    """The quantisation of a model folder; `NOT_QUANTISED` where config.json has none."""
    if not (folder / "config.json").is_file():
        return NOT_QUANTISED
    fields = read_fields(folder)
    inner = fields.get("text_config")
    nested = inner.get("quantization_config") if isinstance(inner, dict) else None
    stored = fields.get("quantization_config") or nested
    try:
        return parse_quantisation(stored)
    except ConfigError as error:
        raise ConfigError(f"{folder}: {error}") from error


def parse_quantisation(stored: object) -> Quantisation:
    """Refuses methods that are not read, by name."""
    if stored is None:
        return NOT_QUANTISED
    if not isinstance(stored, dict):
        raise ConfigError("quantization_config in config.json must be an object; fix the field")
    method = stored.get("quant_method")
    if method not in _METHODS:
        raise ConfigError(
            "config.json has a quantization_config, and weights quantised by "
            f"{method or 'an unnamed method'} are not read; use one of {', '.join(_METHODS)}, or "
            "a bfloat16 copy of the model"
        )
    if method == "gptq":
        return _gptq(stored)
    if method == "awq":
        return _awq(stored)
    return Quantisation(
        method=method, block=_block(stored), bits=_bits(stored), unquantised=_unquantised(stored)
    )


def _gptq(stored: Mapping[str, Any]) -> Quantisation:
    form = stored.get("checkpoint_format", "gptq")
    if form not in ("gptq", "gptq_v2"):
        raise ConfigError(f"GPTQ weights stored as {form} are not read; use gptq or gptq_v2")
    if stored.get("dynamic"):
        raise ConfigError(
            "GPTQ weights with other settings per layer (dynamic) are not read; use a folder with "
            "one setting"
        )
    return Quantisation(
        method="gptq", bits=_width(stored.get("bits")), zero_offset=1 if form == "gptq" else 0
    )


def _awq(stored: Mapping[str, Any]) -> Quantisation:
    version = str(stored.get("version", "gemm")).lower()
    if version != "gemm":
        raise ConfigError(f"AWQ weights of version {version} are not read; use version gemm")
    if _width(stored.get("bits")) != 4:
        raise ConfigError(f"AWQ weights of {stored.get('bits')} bits are not read; use 4 bits")
    return Quantisation(method="awq", unquantised=_unquantised(stored))


def _block(stored: Mapping[str, Any]) -> tuple[int, int]:
    """Rows and columns of an fp8 block, from either spelling."""
    size = stored.get("weight_block_size") or _of_groups(stored, "block_structure")
    if not size:
        return _BLOCK
    is_pair = isinstance(size, list) and len(size) == 2
    if not is_pair or not all(isinstance(each, int) and each > 0 for each in size):
        raise ConfigError(f"config.json has blocks of {size}; two positive sizes are needed")
    return size[0], size[1]


def _bits(stored: Mapping[str, Any]) -> int:
    found = _of_groups(stored, "num_bits")
    return 4 if found is None else _width(found)


def _width(bits: object) -> int:
    if not isinstance(bits, int) or bits not in (2, 4, 8):
        raise ConfigError(f"weights of {bits} bits are not read; use 2, 4 or 8 bits")
    return bits


def _of_groups(stored: Mapping[str, Any], field: str) -> Any:
    """A field of the weights in `config_groups`, which all groups must agree on."""
    groups = stored.get("config_groups")
    if not isinstance(groups, dict):
        return None
    stored_groups = [each for each in groups.values() if isinstance(each, dict)]
    weights = [each["weights"] for each in stored_groups if isinstance(each.get("weights"), dict)]
    values = [each.get(field) for each in weights if each.get(field) is not None]
    if any(value != values[0] for value in values):
        raise ConfigError(
            f"config.json has groups with different {field} ({values}), which are not read; use a "
            "folder with one setting"
        )
    return values[0] if values else None


def _unquantised(stored: Mapping[str, Any]) -> tuple[str, ...]:
    names: list[str] = []
    for key in _LISTS:
        listed = stored.get(key) or []
        if not isinstance(listed, list):
            raise ConfigError(f"{key} in config.json must be a list of modules; fix the field")
        names += [str(each) for each in listed]
    return tuple(names)
