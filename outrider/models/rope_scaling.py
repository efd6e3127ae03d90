"""The kinds of rope scaling, which stretch rotary frequencies to a longer context.

The formulas are in `layers/rotary_embedding.py`.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from outrider.errors import ConfigError
from outrider.models.config_fields import read_object

_LONGROPE = "longrope"


@dataclass(frozen=True, slots=True, kw_only=True)
class NoScaling:
    """Unscaled frequencies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearScaling:
    """All frequencies are divided by the factor."""

    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3Scaling:
    """Low frequencies are divided by the factor, high ones stay, those between are blended."""

    factor: float
    low_freq_factor: float  # low: fewer periods than this in the original context
    high_freq_factor: float  # high: more periods than this
    original_context: int


@dataclass(frozen=True, slots=True, kw_only=True)
class YarnScaling:
    """As Llama 3, but blended by dimension. Queries and keys are scaled by the attention factor."""

    factor: float
    beta_slow: float  # periods in the original context
    beta_fast: float
    original_context: int
    attention_factor: float
    latent_factor: float = 1.0  # latent attention multiplies its scores by the square
    is_truncated: bool = True  # the ramp begins and ends at whole pairs of channels


@dataclass(frozen=True, slots=True, kw_only=True)
class LongRopeScaling:
    """Every frequency is divided by a factor of its own. There are two lists of factors.

    Which list counts is decided once for an engine, by the longest text that it may run: texts of a
    batch share steps and cached prefixes, so the length of a single text cannot decide.
    """

    short: tuple[float, ...]  # for texts up to the original context
    long: tuple[float, ...]
    original_context: int
    context: int  # the longest text
    attention_factor: float  # of rotated queries and keys

    @property
    def factors(self) -> tuple[float, ...]:
        return self.long if self.context > self.original_context else self.short


RopeScaling = NoScaling | LinearScaling | Llama3Scaling | YarnScaling | LongRopeScaling


def rope_settings(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The rope fields of either form. Refuses two forms that differ."""
    newer, older = (read_object(fields, key) for key in ("rope_parameters", "rope_scaling"))
    merged = newer | {"type": newer.get("rope_type", newer.get("type"))}
    if newer and any(merged.get(key) != value for key, value in older.items() if value is not None):
        raise ConfigError(
            "config.json has rope_parameters and a rope_scaling that says otherwise; merge them "
            "into one of the two"
        )
    return newer or older


def parse_scaling(settings: dict[str, Any], max_context: int) -> RopeScaling:
    """The scaling of `rope_parameters` or `rope_scaling`, without the base frequency."""
    settings = {key: value for key, value in settings.items() if value is not None}
    kind = settings.pop("rope_type", settings.pop("type", "default"))
    settings.pop("type", None)  # some files have both spellings
    if not isinstance(kind, str) or kind not in _PARSERS:
        raise ConfigError(
            f"rope scaling of type {kind} is not supported; use one of {', '.join(_PARSERS)}"
        )
    settings.setdefault("original_max_position_embeddings", max_context)
    if kind == _LONGROPE:
        settings["max_position_embeddings"] = max_context
    try:
        if float(settings.get("factor", 1.0)) <= 0:
            raise ValueError("factor")
        scaling = _PARSERS[kind](settings)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ConfigError(f"rope scaling of type {kind} needs a valid {error}") from error
    settings.pop("original_max_position_embeddings", None)
    if settings:
        raise ConfigError(f"rope scaling of type {kind} does not support {', '.join(settings)}")
    return scaling


def _parse_none(settings: dict[str, Any]) -> RopeScaling:
    settings.pop("factor", None)
    return NoScaling()


def _parse_linear(settings: dict[str, Any]) -> RopeScaling:
    return LinearScaling(factor=float(settings.pop("factor")))


def _parse_llama3(settings: dict[str, Any]) -> RopeScaling:
    return Llama3Scaling(
        factor=float(settings.pop("factor")),
        low_freq_factor=float(settings.pop("low_freq_factor")),
        high_freq_factor=float(settings.pop("high_freq_factor")),
        original_context=int(settings.pop("original_max_position_embeddings")),
    )


def _parse_yarn(settings: dict[str, Any]) -> RopeScaling:
    factor = float(settings.pop("factor"))
    rotated, all_dims = (float(settings.pop(key, 0.0)) for key in ("mscale", "mscale_all_dim"))
    usual = _growth(factor, 1.0)
    if rotated and all_dims:
        usual = _growth(factor, rotated) / _growth(factor, all_dims)
    return YarnScaling(
        factor=factor,
        beta_slow=float(settings.pop("beta_slow", 1.0)),
        beta_fast=float(settings.pop("beta_fast", 32.0)),
        original_context=int(settings.pop("original_max_position_embeddings")),
        attention_factor=float(settings.pop("attention_factor", usual)),
        latent_factor=_growth(factor, all_dims),
        is_truncated=bool(settings.pop("truncate", True)),
    )


def _parse_longrope(settings: dict[str, Any]) -> RopeScaling:
    original = int(settings.pop("original_max_position_embeddings"))
    context = int(settings.pop("max_position_embeddings"))
    if original < 2:
        raise ValueError("original_max_position_embeddings")
    factor = float(settings.pop("factor", context / original))
    usual = math.sqrt(1.0 + math.log(max(factor, 1.0)) / math.log(original))
    return LongRopeScaling(
        short=_parse_factors(settings, "short_factor"),
        long=_parse_factors(settings, "long_factor"),
        original_context=original,
        context=context,
        attention_factor=float(settings.pop("attention_factor", usual)),
    )


def _parse_factors(settings: dict[str, Any], key: str) -> tuple[float, ...]:
    factors = settings.pop(key)
    if not isinstance(factors, list) or not all(0 < float(each) < math.inf for each in factors):
        raise ValueError(key)
    return tuple(map(float, factors))


def _growth(factor: float, share: float) -> float:
    """The attention factor of the YaRN paper; `share` scales its logarithm."""
    return 1.0 + 0.1 * share * math.log(max(factor, 1.0))


_PARSERS: dict[str, Callable[[dict[str, Any]], RopeScaling]] = {
    "default": _parse_none,
    "linear": _parse_linear,
    "llama3": _parse_llama3,
    "yarn": _parse_yarn,
    _LONGROPE: _parse_longrope,
}
