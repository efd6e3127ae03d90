"""What a folder says about its quantised weights. The stored tensors decide, and must agree."""

import fnmatch
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from outrider.errors import ConfigError
from outrider.models.quantised.compressed_groups import (
    announced_kinds,
    block_of,
    block_of_groups,
    refuse_rotations,
    values_of_groups,
)
from outrider.models.quantised.stored_kind import GROUPS, StoredKind

METHODS = (
    *("fp8", "fbgemm_fp8", "compressed-tensors", "modelopt", "mxfp4", "gptq", "awq"),
    "auto-round",
)
_LISTS = ("modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules")
_MODELOPT_BLOCK = (128, 128)  # of those that have blocks, which do not say it
_MODELOPT_WITH_BLOCKS = ("FP8_PB_WO", "MIXED_PRECISION")
_WIDTHS = (2, 4, 8)  # bits of a number in a word
_MODELOPT: dict[str, tuple[StoredKind, ...]] = {
    "FP8": ("fp8",),
    "FP8_PER_CHANNEL_PER_TOKEN": ("fp8",),
    "FP8_PB_WO": ("fp8",),
    "NVFP4": ("nvfp4",),
    "W4A16_NVFP4": ("nvfp4",),
    "MXFP8": ("mxfp8",),
    "MIXED_PRECISION": ("fp8", "nvfp4", "mxfp8", "mxfp4"),
}
_NOT_QUANTISED_BITS = (16, 32)  # of a module in `extra_config` of auto-round
_LEFT_OUT = "-:"  # in `dynamic` of GPTQ, before a pattern of modules
_ORDERS = ("group", "dynamic", True)  # actorder that needs the group of every input
KVCacheScheme = Literal["not stated", "fp8_e4m3", "another"]


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegerCodes:
    """Integers in words, as config.json states them. What it does not state is an empty tuple."""

    bits: tuple[int, ...] = ()
    groups: tuple[int, ...] = ()  # inputs that share a scale; below 1 for those of a whole row
    zero_offset: int = 0  # GPTQ of version 1 stores zero points less one
    is_symmetric: bool = False  # every zero point is the middle of the range
    needs_zeros: bool = False  # zero points must be stored
    needs_order: bool = False  # the group of every input must be stored


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantisation:
    """The fields that the layout of stored tensors does not tell by itself."""

    method: str
    kinds: tuple[StoredKind, ...] = ()  # that weights may be stored in
    block: tuple[int, ...] = ()  # rows and columns that share an fp8 scale; () if not stated
    integers: IntegerCodes = field(default_factory=IntegerCodes)
    unquantised: tuple[str, ...] = ()  # modules that are not quantised, as config.json lists them
    kv_cache: KVCacheScheme = "not stated"  # what the weights were calibrated for

    @property
    def group(self) -> int:
        """Inputs of a weight that share a scale, in all kinds; 0 where none is stated."""
        sizes = {size for size in (*self.block[1:], *self.integers.groups) if size > 0}
        sizes |= {GROUPS[kind] for kind in self.kinds if kind in GROUPS}
        return math.lcm(*sizes) if sizes else 0

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


def parse_quantisation(stored: object) -> Quantisation:
    """Refuses methods that are not read, by name."""
    if stored is None:
        return NOT_QUANTISED
    if not isinstance(stored, dict):
        raise ConfigError("quantization_config in config.json must be an object; fix the field")
    method = stored.get("quant_method")
    if isinstance(method, str) and method.startswith("modelopt"):  # also modelopt_fp4, ...
        return _modelopt(stored)
    if method not in METHODS:
        raise ConfigError(
            "config.json has a quantization_config, and weights quantised by "
            f"{method or 'an unnamed method'} are not read; use one of {', '.join(METHODS)}, or "
            "a bfloat16 copy of the model"
        )
    readers = {"gptq": _gptq, "awq": _awq, "compressed-tensors": _compressed, "fp8": _fp8}
    readers["auto-round"] = _auto_round
    if method in readers:
        return readers[method](stored)
    kinds: tuple[StoredKind, ...] = ("mxfp4",) if method == "mxfp4" else ("fp8",)
    return Quantisation(method=method, kinds=kinds, unquantised=_unquantised(stored))


def _fp8(stored: Mapping[str, Any]) -> Quantisation:
    """The experts of DeepSeek-V4 are MXFP4 beside fp8."""
    return Quantisation(
        method="fp8",
        kinds=("fp8", "mxfp4"),
        block=block_of(stored.get("weight_block_size")),
        unquantised=_unquantised(stored),
    )


def _modelopt(stored: Mapping[str, Any]) -> Quantisation:
    """Both spellings: fields in `quantization` as of hf_quant_config.json, or beside the method."""
    inner = stored.get("quantization")
    fields = {**stored, **inner} if isinstance(inner, dict) else stored
    algorithm = str(fields.get("quant_algo") or "MIXED_PRECISION").upper()
    if algorithm not in _MODELOPT:
        raise ConfigError(
            f"weights quantised by ModelOpt as {algorithm} are not read; use one of "
            f"{', '.join(_MODELOPT)}"
        )
    return Quantisation(
        method="modelopt",
        kinds=_MODELOPT[algorithm],
        block=_MODELOPT_BLOCK if algorithm in _MODELOPT_WITH_BLOCKS else (),
        unquantised=_unquantised(fields),
        kv_cache=_kv_cache(fields),
    )


def _compressed(stored: Mapping[str, Any]) -> Quantisation:
    refuse_rotations(stored)
    integers = [each for each in values_of_groups(stored, "type", "num_bits") if each[0] == "int"]
    symmetric = values_of_groups(stored, "type", "symmetric")
    orders = [order in _ORDERS for (order,) in values_of_groups(stored, "actorder")]
    return Quantisation(
        method="compressed-tensors",
        kinds=announced_kinds(stored),
        block=block_of_groups(stored),
        integers=IntegerCodes(
            bits=tuple(sorted({_width(bits) for _, bits in integers})),
            groups=_group_sizes(stored),
            needs_zeros=bool(symmetric) and all(each == ("int", False) for each in symmetric),
            needs_order=bool(orders) and all(orders),
        ),
        unquantised=_unquantised(stored),
        kv_cache=_kv_cache(stored),
    )


def _group_sizes(stored: Mapping[str, Any]) -> tuple[int, ...]:
    """Of groups of integers; a strategy without a size has one scale per row."""
    found = set()
    for kind, strategy, size in values_of_groups(stored, "type", "strategy", "group_size"):
        if kind == "int" and (strategy or size):
            found.add(size if isinstance(size, int) and strategy in ("group", None) else -1)
    return tuple(sorted(found))


def _gptq(stored: Mapping[str, Any]) -> Quantisation:
    form = stored.get("checkpoint_format") or "gptq"
    if form not in ("gptq", "gptq_v2"):
        raise ConfigError(f"GPTQ weights stored as {form} are not read; use gptq or gptq_v2")
    unquantised, overrides = _dynamic(stored)
    settings = [{**stored, **each} for each in ({}, *overrides)]
    widths = {_width(each.get("bits")) for each in settings}
    if len(widths) > 1:
        raise ConfigError(
            f"GPTQ weights of {' and '.join(map(str, sorted(widths)))} bits in one folder "
            "(dynamic) are not read; use a folder with one width"
        )
    groups = {size for each in settings for size in _stated_group(each, "group_size")}
    return Quantisation(
        method="gptq",
        kinds=("gptq",),
        integers=IntegerCodes(
            bits=tuple(widths),
            groups=tuple(sorted(groups)),
            zero_offset=1 if form == "gptq" else 0,
            is_symmetric=all(each.get("sym") is True for each in settings),
            needs_order=any(each.get("desc_act") is True for each in settings),
        ),
        unquantised=unquantised,
    )


def _dynamic(stored: Mapping[str, Any]) -> tuple[tuple[str, ...], list[dict[str, Any]]]:
    """Patterns of modules that GPTQ left out, and other settings for some modules."""
    rules = stored.get("dynamic") or {}
    if not isinstance(rules, dict):
        raise ConfigError("dynamic in config.json must be an object of patterns; fix the field")
    left_out = [each for each in rules if each.startswith(_LEFT_OUT)]
    others = [rules[each] for each in rules if each not in left_out]
    overrides = [each for each in others if isinstance(each, dict)]
    return tuple("re:" + each.removeprefix(_LEFT_OUT) for each in left_out), overrides


def _awq(stored: Mapping[str, Any]) -> Quantisation:
    """The fields of config.json, or those of AutoAWQ's own file."""
    version = str(stored.get("version", "gemm")).lower()
    if version != "gemm":
        raise ConfigError(f"AWQ weights of version {version} are not read; use version gemm")
    bits = stored.get("bits", stored.get("w_bit"))
    if _width(bits) != 4:
        raise ConfigError(f"AWQ weights of {bits} bits are not read; use 4 bits")
    groups = _stated_group(stored, "group_size") or _stated_group(stored, "q_group_size")
    return Quantisation(
        method="awq",
        kinds=("awq",),
        integers=IntegerCodes(bits=(4,), groups=groups),
        unquantised=_unquantised(stored),
    )


def _auto_round(stored: Mapping[str, Any]) -> Quantisation:
    """The layouts of GPTQ or AWQ. Modules with settings of their own are in `extra_config`."""
    packing = str(stored.get("packing_format", "auto_round:auto_gptq"))
    read = {"auto_gptq": _gptq, "gptq": _gptq, "auto_awq": _awq, "awq": _awq}
    name, data_type = packing.rpartition(":")[2], stored.get("data_type", "int")
    if name not in read or data_type != "int":
        raise ConfigError(
            f"weights of auto-round stored as {packing} of {data_type} are not read; use "
            "auto_round:auto_gptq or auto_round:auto_awq with int"
        )
    extra = stored.get("extra_config") or {}
    own = {key: each for key, each in extra.items() if isinstance(each, dict)}
    whole = [key for key, each in own.items() if each.get("bits") in _NOT_QUANTISED_BITS]
    rules = {f"+:{key}": each for key, each in own.items() if key not in whole}
    rules |= {f"{_LEFT_OUT}{re.escape(key)}$": {} for key in whole}
    return read[name]({**stored, "dynamic": rules, "modules_to_not_convert": whole})


def _stated_group(stored: Mapping[str, Any], field: str) -> tuple[int, ...]:
    size = stored.get(field)
    if size is None:
        return ()
    if not isinstance(size, int):
        raise ConfigError(f"{field} is {size!r}, and a number of inputs is needed; fix the field")
    return (size,)


def _width(bits: object) -> int:
    if not isinstance(bits, int) or bits not in _WIDTHS:
        raise ConfigError(f"weights of {bits} bits are not read; use 2, 4 or 8 bits")
    return bits


def _kv_cache(stored: Mapping[str, Any]) -> KVCacheScheme:
    """Which type of keys and values the exporter calibrated scales for."""
    scheme = stored.get("kv_cache_scheme") or stored.get("kv_cache_quant_algo")
    if not scheme:
        return "not stated"
    if isinstance(scheme, dict):
        is_fp8 = (scheme.get("num_bits"), scheme.get("type")) == (8, "float")
    else:
        is_fp8 = str(scheme).upper() == "FP8"
    return "fp8_e4m3" if is_fp8 else "another"


def _unquantised(stored: Mapping[str, Any]) -> tuple[str, ...]:
    names: list[str] = []
    for key in _LISTS:
        listed = stored.get(key) or []
        if not isinstance(listed, list):
            raise ConfigError(f"{key} in config.json must be a list of modules; fix the field")
        names += [str(each) for each in listed]
    return tuple(names)
