"""Scales of keys and values in a checkpoint, under the names that exporters give them."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from outrider.errors import ConfigError
from outrider.models.layers.kv_scales import NO_SCALES, HeadScales, KVScales

# The end of a name below the attention module, and what it scales.
_NAMES = {
    "k_proj.k_scale": "k",  # ModelOpt
    "v_proj.v_scale": "v",
    "k_scale": "k",  # compressed-tensors
    "v_scale": "v",
    "k_proj.output_scale": "k",  # AutoFP8
    "v_proj.output_scale": "v",
    "kv_scale": "kv",
}
ATTENTION = "attn."  # the end of the name of an attention module
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class StoredScales:
    """The scales of one attention module; 1 where none is stored."""

    keys: torch.Tensor  # [kv_heads] float32
    values: torch.Tensor  # [kv_heads] float32


def attention_of(name: str) -> str:
    """The attention module whose keys or values a tensor scales, with a dot; empty for others."""
    for end in _NAMES:
        prefix = name.removesuffix(end)
        if prefix != name and prefix.endswith(ATTENTION):
            return prefix
    return ""


def find_kv_scales(
    stored: Mapping[str, torch.Tensor],  # by name; those of other modules are ignored
    prefix: str,  # of the attention module
    kv_heads: int,
) -> StoredScales | None:
    """The scales of one module, one for all heads or one for each; None if it has none."""
    found: dict[str, torch.Tensor] = {}
    for end, kinds in _NAMES.items():
        if prefix + end in stored:
            scale = _checked(prefix + end, stored[prefix + end], kv_heads)
            found |= dict.fromkeys(kinds, scale)
    if not found:
        return None
    one = torch.ones(kv_heads)
    return StoredScales(keys=found.get("k", one), values=found.get("v", one))


def scales_of_heads(
    stored: StoredScales | None,
    heads: torch.Tensor,  # [n] int64 heads of keys
    group: int,  # query heads of each of them
    *,
    dtype: torch.dtype,
    device: torch.device,
) -> KVScales:
    """The scales of some heads, as attention uses them."""
    if stored is None:
        return NO_SCALES
    keys, values = stored.keys[heads], stored.values[heads]
    return HeadScales.make(keys, values, group=group, dtype=dtype, device=device)


def _checked(name: str, stored: torch.Tensor, kv_heads: int) -> torch.Tensor:  # [kv_heads]
    if stored.dtype not in _FLOATS:
        raise ConfigError(
            f"{name} is stored as {stored.dtype}, and scales are floats; download it again"
        )
    scale = stored.flatten().float()
    if scale.numel() not in (1, kv_heads):
        raise ConfigError(
            f"{name} has {scale.numel()} numbers, and the model has {kv_heads} heads of keys; use "
            "weights that belong to the config"
        )
    if not bool((scale.isfinite() & (scale > 0)).all()):
        raise ConfigError(f"{name} holds numbers that are no scales; download the model again")
    return scale.expand(kv_heads)
