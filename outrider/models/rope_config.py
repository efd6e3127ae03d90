"""Rotary position embedding, as config.json describes it."""

from dataclasses import dataclass
from typing import Any

from outrider.errors import ConfigError
from outrider.models.config_fields import read_real
from outrider.models.registry import Family
from outrider.models.rope_scaling import NoScaling, RopeScaling, parse_scaling, rope_settings


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

    def num_rotated(self, head_dim: int) -> int:
        """Rotated channels of a head."""
        return int(head_dim * self.share)


# Layers without positions (NoPE): no channel is rotated.
NO_ROPE = RopeConfig(theta=1.0, scaling=NoScaling(), share=0.0)


def parse_rope(fields: dict[str, Any], max_context: int, family: Family) -> RopeConfig:
    """Reads either form: `rope_parameters`, or the older `rope_theta` and `rope_scaling`."""
    rope = rope_settings(fields) or dict(family.ropes.usual_scaling)
    if "rope_theta" in fields and rope.get("rope_theta") is None:  # the inner value wins
        rope["rope_theta"] = fields["rope_theta"]
    theta = read_real(rope, "rope_theta") if "rope_theta" in rope else family.theta
    rope.pop("rope_theta", None)
    sections = _pop_sections(rope) if family.ropes.has_axes else ()
    if family.recurrent_projections != "none":  # positions of images; they do not matter for text
        rope = {key: value for key, value in rope.items() if not key.startswith("mrope_")}
    if "mscale" in rope and not family.has_latents:
        raise ConfigError(
            f"rope scaling with mscale is not supported for {family.name}; set the "
            "attention_factor that it stands for, or use another model"
        )
    share = _share(rope.pop("partial_rotary_factor", None), fields, family)
    if share != 1.0 and rope.get("rope_type", rope.get("type", "default")) != "default":
        raise ConfigError(
            "rope scaling of partly rotated heads is not supported; remove rope_scaling, or set "
            "the rope_type in rope_parameters to default"
        )
    return RopeConfig(
        theta=theta,
        share=share,
        scaling=parse_scaling(rope, max_context),
        sections=sections,
        is_interleaved=family.ropes.is_interleaved
        or (family.has_latents and bool(fields.get("rope_interleave", True))),
    )


def _pop_sections(rope: dict[str, Any]) -> tuple[int, ...]:
    """The sections, which older files call a kind of scaling."""
    sections = rope.pop("mrope_section", None)
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
    if rope.sections and 2 * sum(rope.sections) != head_dim:
        raise ConfigError(
            f"config.json has mrope_section {list(rope.sections)} for heads of {head_dim} channels;"
            " their sum must be a half of it"
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
    if family.rotary_share == 1.0:
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
