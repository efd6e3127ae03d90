"""In what the attention of layers differs: windows, attention chunks and rotary embeddings."""

from dataclasses import dataclass, replace
from typing import Any

from outrider.errors import ConfigError
from outrider.models.config_fields import (
    read_list,
    read_number_or,
    read_object,
    read_real_or,
    read_size,
    read_size_or,
)
from outrider.models.family import Family
from outrider.models.rope_config import NO_ROPE, RopeConfig, parse_rope
from outrider.ops.attention.attention_rule import WHOLE_TEXT
from outrider.wire.window_facts import Window

_FULL, _SLIDING, _CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
_MAX_WINDOW_LAYERS = 28  # where Qwen configs do not have the field
_ROPE_FIELDS = ("rope_theta", "rope_scaling", "rope_parameters")
_LAYER_TYPES = (_FULL, _SLIDING, _CHUNKED, "linear_attention")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPattern:
    """One entry per layer."""

    windows: tuple[int, ...]  # WHOLE_TEXT without sliding window
    attention_chunks: tuple[int, ...]  # likewise
    ropes: tuple[RopeConfig, ...]

    @property
    def different_ropes(self) -> tuple[RopeConfig, ...]:
        """In the order of the first layers that have them."""
        return tuple(dict.fromkeys(self.ropes))

    def within(self, context: int) -> "LayerPattern":
        """The pattern for texts up to this length."""
        return replace(self, ropes=tuple(rope.within(context) for rope in self.ropes))

    def rope_at(self, layer: int) -> RopeConfig:
        """The rope of a layer. Draft modules, behind the last one, have the first one's."""
        return self.ropes[layer if layer < len(self.ropes) else 0]

    def rope_index(self, layer: int) -> int:
        """The index of a layer's rope among the different ones."""
        return self.different_ropes.index(self.rope_at(layer))

    def window_at(self, layer: int) -> int:
        """The sliding window of a layer. Draft modules, behind the last one, have none."""
        return self.windows[layer] if layer < len(self.windows) else WHOLE_TEXT

    def reach_at(self, layer: int) -> int:
        """The most tokens that a token of this layer sees, itself included."""
        return min(self.window_at(layer), self.attention_chunk_at(layer))

    @property
    def all_seen(self) -> tuple[Window, ...]:
        """What queries of each layer see. A layer has a window, or attention chunks, or neither."""
        return tuple(
            Window(tokens=chunk, is_chunk=True) if chunk < WHOLE_TEXT else Window(tokens=window)
            for window, chunk in zip(self.windows, self.attention_chunks, strict=True)
        )

    def is_windowed(self, layer: int) -> bool:
        """Whether a layer has a sliding window, or attention chunks."""
        return self.reach_at(layer) < WHOLE_TEXT

    def attention_chunk_at(self, layer: int) -> int:
        """The attention chunk of a layer. Draft modules have none."""
        return self.attention_chunks[layer] if layer < len(self.windows) else WHOLE_TEXT


def parse_pattern(
    fields: dict[str, Any], family: Family, *, num_layers: int, max_context: int
) -> LayerPattern:
    """What config.json says about its layers; absent fields mean the same as in transformers."""
    types = _layer_types(fields, family, num_layers)
    window = _window(fields, family) if _SLIDING in types else WHOLE_TEXT
    if _SLIDING in types and (family.has_latents or family.recurrent_projections != "none"):
        raise ConfigError(
            f"config.json gives layers of {family.name} a sliding_window, which is not supported; "
            "use another model"
        )
    by_type = _ropes(fields, family, max_context)
    has_rope = _rope_flags(fields, family, types)
    return LayerPattern(
        windows=tuple(window if kind == _SLIDING else WHOLE_TEXT for kind in types),
        attention_chunks=_attention_chunks(fields, family, types),
        ropes=tuple(
            by_type.get(kind, by_type[_FULL]) if is_rotated else NO_ROPE
            for kind, is_rotated in zip(types, has_rope, strict=True)
        ),
    )


def _ropes(fields: dict[str, Any], family: Family, max_context: int) -> dict[str, RopeConfig]:
    """The rope of each kind of layer. Layers with windows have no scaling in the older form."""
    local = family.ropes.local_theta
    if not local:
        return {_FULL: parse_rope(fields, max_context, family)}
    stored = read_object(fields, "rope_parameters")
    if _FULL not in stored and _SLIDING not in stored:
        theta = read_real_or(fields, "rope_local_base_freq", local)
        stored = {_FULL: stored, _SLIDING: {"rope_theta": theta}}
    plain = {key: value for key, value in fields.items() if key not in _ROPE_FIELDS}
    full = fields | {"rope_parameters": read_object(stored, _FULL) or None}
    sliding = plain | {"rope_parameters": {"rope_theta": local} | read_object(stored, _SLIDING)}
    return {
        _FULL: parse_rope(full, max_context, family),
        _SLIDING: parse_rope(sliding, max_context, family),
    }


def _rope_flags(fields: dict[str, Any], family: Family, types: list[str]) -> list[bool]:
    """Which layers have a rope. SmolLM3 lists them; usually every fourth has none."""
    num_layers = len(types)
    if family.ropes.is_of_windows:
        return [kind == _SLIDING for kind in types]
    if not family.ropes.is_listed:
        return [True] * num_layers
    flags = read_list(fields, "no_rope_layers")
    if not flags:
        interval = read_size_or(fields, "no_rope_layer_interval", 4)
        return [(layer + 1) % interval != 0 for layer in range(num_layers)]
    if len(flags) != num_layers or any(flag not in (0, 1) for flag in flags):
        raise ConfigError(
            f"config.json needs 0 or 1 for each of the {num_layers} layers in no_rope_layers, got "
            f"{flags}; fix the field"
        )
    return [bool(flag) for flag in flags]


def _layer_types(fields: dict[str, Any], family: Family, num_layers: int) -> list[str]:
    """The kind of every layer. The list in config.json wins over the pattern of the family."""
    types = read_list(fields, "layer_types")
    if not types:
        return _usual_types(fields, family, num_layers)
    if len(types) != num_layers or any(kind not in _LAYER_TYPES for kind in types):
        raise ConfigError(
            f"config.json needs one of {', '.join(_LAYER_TYPES)} for each of the {num_layers} "
            f"layers in layer_types, got {types}; fix the field, or use another model"
        )
    return [str(kind) for kind in types]


def _usual_types(fields: dict[str, Any], family: Family, num_layers: int) -> list[str]:
    style = family.windows
    if style.usual_chunk:
        flags = _rope_flags(fields, family, [_FULL] * num_layers)
        return [_CHUNKED if is_rotated else _FULL for is_rotated in flags]
    has_window = style.is_read and fields.get("sliding_window", style.usual) is not None
    if not has_window or not fields.get("use_sliding_window", not style.has_switch):
        return [_FULL] * num_layers
    if family.ropes.is_listed:  # its windows follow the list of ropes in transformers
        raise ConfigError(
            f"config.json of {family.name} has a sliding_window and no layer_types; add layer_types"
        )
    first = 0
    if style.has_first:
        first = read_number_or(fields, "max_window_layers", _MAX_WINDOW_LAYERS)
    period = read_size_or(fields, "sliding_window_pattern", style.period) if style.period else 0
    return [
        _FULL if layer < first or (period and (layer + 1) % period == 0) else _SLIDING
        for layer in range(num_layers)
    ]


def _attention_chunks(fields: dict[str, Any], family: Family, types: list[str]) -> tuple[int, ...]:
    if _CHUNKED in types and not family.windows.usual_chunk:
        raise ConfigError(
            f"config.json gives layers of {family.name} the type {_CHUNKED}, which is not "
            "supported; use another model"
        )
    size = read_size_or(fields, "attention_chunk_size", family.windows.usual_chunk or WHOLE_TEXT)
    return tuple(size if kind == _CHUNKED else WHOLE_TEXT for kind in types)


def _window(fields: dict[str, Any], family: Family) -> int:
    if "sliding_window" not in fields and family.windows.usual is not None:
        return family.windows.usual
    return read_size(fields, "sliding_window")
