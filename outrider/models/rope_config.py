"""Rotary position embedding, as config.json describes it."""

from dataclasses import dataclass, replace
from typing import Any

from outrider.errors import ConfigError
from outrider.models.config_fields import read_real
from outrider.models.family import Family, RopeStyle
from outrider.models.rope_scaling import (
    LongRopeScaling,
    NoScaling,
    RopeScaling,
    YarnScaling,
    parse_scaling,
    rope_settings,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary position embedding."""

    theta: float
    scaling: RopeScaling
    is_interleaved: bool = (
        False  # stored with the channels of a pair side by side, not half a head apart
    )
    share: float = 1.0  # of a head's channels that are rotated: the first ones

    # Pairs of channels that rotate by time, by row and by column (mrope); empty: one position.
    sections: tuple[int, ...] = ()
    has_alternating_axes: bool = False  # else pairs of an axis are neighbours

    def num_rotated(self, head_dim: int) -> int:
        """Rotated channels of a head."""
        return int(head_dim * self.share)

    def within(self, context: int) -> "RopeConfig":
        """The rope of an engine whose texts are not longer than this."""
        if not isinstance(self.scaling, LongRopeScaling):
            return self
        return replace(self, scaling=replace(self.scaling, context=context))

    @property
    def rotation(self) -> str:
        """Names what positions are rotated by. Of two lists of factors only one counts."""
        scaling = self.scaling
        if isinstance(scaling, LongRopeScaling):
            return repr(
                (replace(self, scaling=NoScaling()), scaling.factors, scaling.attention_factor)
            )
        return repr(self)

    def axes(self, num_pairs: int) -> tuple[int, ...]:
        """Of each rotated pair of channels, by what it rotates: 0 time, 1 row, 2 column."""
        sections, pairs = self.sections, range(num_pairs)
        if not self.has_alternating_axes:
            return tuple(axis for axis, num in enumerate(sections) for _ in range(num))
        # Time, row, column, time, ... as long as an axis has pairs left. Time has the others.
        return tuple(pair % 3 if pair // 3 < sections[pair % 3] else 0 for pair in pairs)


# Layers without positions (NoPE): no channel is rotated.
NO_ROPE = RopeConfig(theta=1.0, scaling=NoScaling(), share=0.0)


def parse_rope(fields: dict[str, Any], max_context: int, family: Family) -> RopeConfig:
    """Reads either form: `rope_parameters`, or the older `rope_theta` and `rope_scaling`."""
    rope = rope_settings(fields) or dict(family.ropes.usual_scaling)
    if "rope_theta" in fields and rope.get("rope_theta") is None:  # the inner value wins
        rope["rope_theta"] = fields["rope_theta"]
    theta = read_real(rope, "rope_theta") if "rope_theta" in rope else family.theta
    rope.pop("rope_theta", None)
    sections = () if family.ropes.axes == "none" else _pop_sections(rope, family.ropes)
    if family.recurrent_projections != "none":  # positions of images; they do not matter for text
        rope = {key: value for key, value in rope.items() if not key.startswith("mrope_")}
    share = _share(rope.pop("partial_rotary_factor", None), fields, family)
    scaling = parse_scaling(_with_original(rope, fields, family), max_context)
    if family.style.has_plain_head_norm and isinstance(scaling, YarnScaling):
        raise ConfigError(
            f"rope scaling of type yarn is not supported for {family.name}, which normalises "
            "heads after the rotation; use another model"
        )
    return RopeConfig(
        theta=theta,
        share=share,
        scaling=scaling,
        sections=sections,
        has_alternating_axes=family.ropes.axes == "alternating",
        is_interleaved=family.ropes.is_interleaved
        or (family.has_latents and bool(fields.get("rope_interleave", True))),
    )


def _with_original(rope: dict[str, Any], fields: dict[str, Any], family: Family) -> dict[str, Any]:
    """The settings as families spell them that have fields of their own for long texts."""
    style, rope = family.ropes, dict(rope)
    if style.is_always_longrope:  # older names of it, and a context outside of the settings
        for key in ("rope_type", "type"):
            if rope.get(key) in ("su", "yarn"):
                rope[key] = "longrope"
        original = fields.get("original_max_position_embeddings")
        if original is not None and rope.get("rope_type", rope.get("type")) == "longrope":
            rope["original_max_position_embeddings"] = original
    for key in style.other_settings:
        rope.pop(key, None)
    return rope


def _pop_sections(rope: dict[str, Any], ropes: RopeStyle) -> tuple[int, ...]:
    """The sections, which older files call a kind of scaling."""
    sections = rope.pop("mrope_section", list(ropes.usual_sections) or None)
    if ropes.axes == "alternating":
        rope.pop("mrope_interleaved", None)  # transformers does not read it either
    for key in ("rope_type", "type"):
        if rope.get(key) == "mrope":
            rope[key] = "default"
    is_list = isinstance(sections, list) and len(sections) == 3
    if not is_list or any(type(each) is not int or each < 0 for each in sections):
        raise ConfigError(
            f"config.json needs mrope_section with three numbers of channel pairs, got {sections}; "
            "download it again"
        )
    return tuple(sections)


def check_pairs(rope: RopeConfig, head_dim: int) -> None:
    """Refuse an odd number of rotated channels, and sections of another number."""
    rotated = rope.num_rotated(head_dim)
    if 2 * len(rope.axes(rotated // 2)) != rotated and rope.sections:
        raise ConfigError(
            f"config.json has mrope_section {list(rope.sections)} for heads with {rotated} rotated "
            "channels; their sum must be a half of it"
        )
    scaling = rope.scaling
    if isinstance(scaling, LongRopeScaling):
        for name, factors in (("short_factor", scaling.short), ("long_factor", scaling.long)):
            if 2 * len(factors) != rotated:
                raise ConfigError(
                    f"config.json has {len(factors)} numbers in {name} for heads with {rotated} "
                    "rotated channels; there must be half as many"
                )
    if rope != NO_ROPE and (rotated < 2 or rotated % 2):
        raise ConfigError(
            f"config.json rotates {rotated} of the {head_dim} channels of a head, and "
            f"channels rotate in pairs; set partial_rotary_factor so that {head_dim} times it is "
            "an even number"
        )


def _share(stored: object, fields: dict[str, Any], family: Family) -> float:
    """The rotated share of a head: from either form of the field, or the default of the family.

    Families that rotate whole heads refuse another value. `model_config.py` checks the older
    form of the field for them.
    """
    if not family.reads_rotary_share:
        if stored not in (None, 1.0):
            raise ConfigError(
                f"config.json sets partial_rotary_factor to {stored} in rope_parameters, but only "
                f"1.0 is supported for {family.name}; use another model"
            )
        return 1.0
    usual = fields.get("partial_rotary_factor", family.rotary_share)
    value = usual if stored is None else stored
    share = read_real({"partial_rotary_factor": value}, "partial_rotary_factor")
    if share > 1.0:
        raise ConfigError(f"config.json rotates {share} of every head; fix partial_rotary_factor")
    return share
