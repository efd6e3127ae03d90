"""adapter_config.json of a LoRA adapter: ranks and scales of its modules, as PEFT reads them."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider.errors import RequestError

# Fields that change what an adapter computes, other than by its two matrices.
_UNSUPPORTED = (
    "use_dora",
    "modules_to_save",
    "lora_bias",
    "fan_in_fan_out",
    "layer_replication",
    "target_parameters",
    "trainable_token_indices",
    "alora_invocation_tokens",
    "use_qalora",
    "use_bdlora",
    "arrow_config",
    "kasa_config",
    "monteclora_config",
    "velora_config",
)
# Other ways to begin, such as PiSSA, change the weights of the model too.
_INITS = (None, True, False, "gaussian", "eva", "orthogonal")


@dataclass(frozen=True, slots=True, kw_only=True)
class PeftConfig:
    """How the matrices of an adapter are scaled, and which modules have them."""

    rank: int
    alpha: float
    is_rank_stabilised: bool  # rsLoRA: divided by the root of the rank
    ranks: Mapping[str, int]  # by patterns of module names
    alphas: Mapping[str, float]
    targets: frozenset[str]  # last parts of module names; empty if the config has a pattern
    has_all_layers: bool

    def rank_of(self, module: str) -> int:
        return self.ranks.get(_matching(self.ranks, module), self.rank)

    def scale_of(self, module: str) -> float:
        """The factor of B A x."""
        rank, alpha = self.rank_of(module), self.alphas.get(_matching(self.alphas, module))
        divisor = math.sqrt(rank) if self.is_rank_stabilised else rank
        return (self.alpha if alpha is None else alpha) / divisor

    def is_target(self, module: str) -> bool:
        """Whether the config names this module. A pattern is not tried: its tensors decide."""
        ends = (module == each or module.endswith(f".{each}") for each in self.targets)
        return not self.targets or any(ends)


def parse_peft_config(config: bytes, path: Path) -> PeftConfig:
    """The config that the file at a path held, or a refusal that names the field."""
    try:
        fields = json.loads(config)
        if not isinstance(fields, dict):
            raise ValueError("it is not an object")
        return _parse(fields)
    except (ValueError, TypeError, KeyError, RecursionError, re.error) as error:
        raise RequestError(
            f"{path} is damaged ({type(error).__name__}: {error}); save the adapter again with PEFT"
        ) from error


def _parse(fields: dict[str, Any]) -> PeftConfig:
    _refuse_unsupported(fields)
    targets = fields.get("target_modules")
    is_listed = isinstance(targets, list)
    config = PeftConfig(
        rank=_rank(fields["r"]),
        alpha=float(fields["lora_alpha"]),
        is_rank_stabilised=bool(fields.get("use_rslora")),
        ranks={_pattern(key): _rank(rank) for key, rank in _items(fields, "rank_pattern")},
        alphas={_pattern(key): float(alpha) for key, alpha in _items(fields, "alpha_pattern")},
        targets=frozenset(map(str, targets)) if isinstance(targets, list) else frozenset(),
        has_all_layers=is_listed
        and not any(
            fields.get(name) not in (None, [])
            for name in ("layers_to_transform", "layers_pattern", "exclude_modules")
        ),
    )
    if not all(map(math.isfinite, (config.alpha, *config.alphas.values()))):
        raise ValueError("lora_alpha must be a finite number")
    return config


def _refuse_unsupported(fields: dict[str, Any]) -> None:
    if fields.get("peft_type", "LORA") != "LORA":
        raise RequestError(f"the adapter is {fields['peft_type']}; only LORA is supported")
    if fields.get("bias", "none") != "none":
        raise RequestError(
            f"bias {fields['bias']!r} of an adapter is not supported; train it with bias 'none'"
        )
    for name in _UNSUPPORTED:
        if fields.get(name):
            raise RequestError(
                f"{name} of an adapter is not supported; train it without, or merge it into the "
                "model"
            )
    if fields.get("init_lora_weights") not in _INITS:
        raise RequestError(
            f"init_lora_weights {fields['init_lora_weights']!r} changes the model's own weights; "
            "convert the adapter to plain LoRA with PEFT"
        )


def _rank(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"a rank must be a positive integer, got {value!r}")
    return value


def _items(fields: dict[str, Any], name: str) -> list[tuple[str, Any]]:
    return list(dict(fields.get(name) or {}).items())


def _pattern(key: str) -> str:
    re.compile(key)  # refuses a damaged one here, not where it is used
    return key


def _matching(patterns: Mapping[str, object], module: str) -> str:
    """The first pattern that the end of a module's name has; empty if none does."""
    found = (each for each in patterns if re.match(rf"(.*\.)?({each})$", module))
    return next(found, "")
