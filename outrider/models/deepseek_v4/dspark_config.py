"""Reads the fields of config.json that describe a DSpark drafter inside a DeepSeek-V4 folder."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from outrider.errors import ConfigError
from outrider.hub.own_drafter import has_dspark
from outrider.models.config_fields import read_list, read_size, read_size_or

_USUAL_STAGES = 3  # config.json of the published folders does not say; peers take the same number
_MOST_STAGES = 64
_MOST_SLOTS = 63  # with the last token they are the nodes of a tree
# Fields of later models. The values here mean nothing special.
_NEUTRAL = ("dspark_n_routed_experts", "dspark_num_experts_per_tok", "draft_vocab_size")


@dataclass(frozen=True, slots=True, kw_only=True)
class V4DSparkConfig:
    """A drafter of several layers like the target's. It drafts a block in one pass."""

    num_stages: int  # layers, stored as mtp.0, mtp.1, ...
    block_size: int  # slots, and drafts: a slot predicts the next token
    mask_token: int
    layers: tuple[int, ...]  # after how many layers of the target its states are read
    markov_rank: int


def parse_v4_dspark(
    fields: Mapping[str, Any], *, num_layers: int, vocab_size: int
) -> V4DSparkConfig | None:
    """The drafter that a config.json describes, if it describes one."""
    if not has_dspark(fields):
        return None
    same = (fields.get("n_routed_experts"), fields.get("num_experts_per_tok"), vocab_size)
    for key, value in zip(_NEUTRAL, same, strict=True):
        if fields.get(key) not in (None, value):
            raise ConfigError(
                f"config.json sets {key} to {fields[key]}, but only {value}, as of the target, is "
                "supported; use another model"
            )
    token = fields.get("dspark_noise_token_id")
    if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocab_size:
        raise ConfigError(
            f"config.json sets dspark_noise_token_id to {token}; name the token below {vocab_size} "
            "that stood for masks in training"
        )
    return V4DSparkConfig(
        num_stages=_num_stages(fields),
        block_size=read_size(fields, "dspark_block_size", most=_MOST_SLOTS),
        mask_token=token,
        layers=_layers(fields, num_layers),
        markov_rank=read_size(fields, "dspark_markov_rank"),
    )


def _num_stages(fields: Mapping[str, Any]) -> int:
    num = read_size_or(fields, "n_mtp_layers", _USUAL_STAGES)
    if num > _MOST_STAGES:
        raise ConfigError(
            f"config.json sets n_mtp_layers to {num}; at most {_MOST_STAGES} are supported"
        )
    return num


def _layers(fields: Mapping[str, Any], num_layers: int) -> tuple[int, ...]:
    """The config names layers by their index, and the states are their outputs."""
    ids = read_list(fields, "dspark_target_layer_ids")
    if not ids or not all(type(each) is int and 0 <= each < num_layers for each in ids):
        raise ConfigError(
            f"config.json needs layers of the target, 0 to {num_layers - 1}, in "
            f"dspark_target_layer_ids, got {ids}; fix the field"
        )
    return tuple(each + 1 for each in ids)
