"""Reads from config.json which layers are recurrent."""

from collections.abc import Mapping
from typing import Any

from outrider.errors import ConfigError
from outrider.models.config_fields import read_size, read_size_or
from outrider.models.recurrent.recurrence import Recurrence

_STATE, _FULL = "linear_attention", "full_attention"
_KINDS = (_STATE, _FULL)
_USUAL_INTERVAL = 4  # every fourth layer attends where the file names no interval


# Settings that change the computation, and the values that are supported.
_UNSUPPORTED_UNLESS: dict[str, tuple[Any, ...]] = {
    "attn_output_gate": (True, None),
    "output_gate_type": ("swish", "silu", None),
}


def parse_recurrence(fields: Mapping[str, Any], num_layers: int) -> Recurrence:
    """The recurrent layers that the fields of a config.json describe."""
    for key, allowed in _UNSUPPORTED_UNLESS.items():
        if fields.get(key) not in allowed:
            raise ConfigError(
                f"config.json sets {key} to {fields[key]}, but only {allowed[0]} is supported; "
                "use another model"
            )
    recurrence = Recurrence(
        layers=_layers(fields, num_layers),
        key_heads=read_size(fields, "linear_num_key_heads"),
        value_heads=read_size(fields, "linear_num_value_heads"),
        key_dim=read_size(fields, "linear_key_head_dim"),
        value_dim=read_size(fields, "linear_value_head_dim"),
        window=read_size(fields, "linear_conv_kernel_dim"),
    )
    if recurrence.value_heads % recurrence.key_heads:
        raise ConfigError(
            f"config.json has {recurrence.value_heads} linear value heads for "
            f"{recurrence.key_heads} key heads; the first must be a multiple of the second"
        )
    return recurrence


def _layers(fields: Mapping[str, Any], num_layers: int) -> frozenset[int]:
    interval = read_size_or(fields, "full_attention_interval", _USUAL_INTERVAL)
    kinds = fields.get("layer_types")
    if kinds is None:
        kinds = [_STATE if (layer + 1) % interval else _FULL for layer in range(num_layers)]
    are_known = isinstance(kinds, list) and all(kind in _KINDS for kind in kinds)
    if not are_known or len(kinds) != num_layers or len(set(kinds)) < len(_KINDS):
        raise ConfigError(
            f"config.json must give each of {num_layers} layers {_STATE} or {_FULL} in "
            f"layer_types, and both must be there, got {kinds}; fix the field"
        )
    return frozenset(layer for layer, kind in enumerate(kinds) if kind == _STATE)
