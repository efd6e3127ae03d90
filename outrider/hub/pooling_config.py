"""How a model makes one embedding of a text, as the files of sentence-transformers say."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from outrider.errors import ConfigError

PoolingKind = Literal["last", "mean"]

_LIBRARY = "sentence_transformers.models."
# Kinds in the file of the module. Others exist, and no decoder uses them.
_KINDS: Mapping[str, PoolingKind] = {
    "pooling_mode_lasttoken": "last",
    "pooling_mode_mean_tokens": "mean",
}
_VLLM_KINDS: Mapping[str, PoolingKind] = {"LAST": "last", "MEAN": "mean"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingConfig:
    """Which hidden states of a text become its embedding, and what is done with them."""

    kind: PoolingKind = "last"
    is_normalized: bool = True
    is_matryoshka: bool = False  # the first channels are an embedding, too
    dimensions: tuple[int, ...] = ()  # how many of them; empty: any number
    problem: str = ""  # why texts cannot be embedded; empty if they can


LAST_TOKEN = PoolingConfig()


def read_pooling(folder: Path, given: Mapping[str, Any] | None = None) -> PoolingConfig:
    """The pooling of a folder, by default vLLM's: last, normalised. `given` is --pooler-config."""
    try:
        config = _read_modules(folder, _read_matryoshka(folder))
    except ConfigError as error:  # the model may still answer
        config = PoolingConfig(problem=str(error))
    for name, value in (given or {}).items():
        if name == "pooling_type" and str(value).upper() in _VLLM_KINDS:
            config = replace(config, kind=_VLLM_KINDS[str(value).upper()], problem="")
        elif name in ("normalize", "use_activation") and isinstance(value, bool):
            config = replace(config, is_normalized=value)
        else:
            raise ConfigError(
                f"--pooler-config has {name}={value!r}; use pooling_type LAST or MEAN, and "
                "normalize true or false"
            )
    return config


def parse_pooler(text: str) -> Mapping[str, Any]:
    """The value of --pooler-config, which is vLLM's JSON."""
    try:
        given = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"--pooler-config is no JSON ({error})") from error
    if not isinstance(given, dict):
        raise ConfigError('--pooler-config must be an object such as {"pooling_type": "MEAN"}')
    return given


def _read_matryoshka(folder: Path) -> PoolingConfig:
    fields = _read(folder / "config.json", {})
    sizes = fields.get("matryoshka_dimensions") or ()
    return PoolingConfig(
        is_matryoshka=bool(fields.get("is_matryoshka") or sizes), dimensions=tuple(sizes)
    )


def _read_modules(folder: Path, config: PoolingConfig) -> PoolingConfig:
    modules = _read(folder / "modules.json", [])
    if not modules:
        return config
    config = replace(config, is_normalized=False)
    for module in modules:
        match str(module.get("type")).removeprefix(_LIBRARY):
            case "Transformer":
                pass
            case "Pooling":
                path = folder / str(module.get("path")) / "config.json"
                config = replace(config, kind=_kind_of(_read(path, {}), path))
            case "Normalize":
                config = replace(config, is_normalized=True)
            case other:
                raise ConfigError(
                    f"{folder}/modules.json has a module {other}, which is not supported; "
                    "give --pooler-config to use the hidden states of the model alone"
                )
    return config


def _kind_of(fields: Mapping[str, Any], path: Path) -> PoolingKind:
    modes = [name for name, value in fields.items() if name.startswith("pooling_mode_") and value]
    if len(modes) != 1 or modes[0] not in _KINDS:
        raise ConfigError(f"{path} has {modes}; only last and mean pooling are supported")
    return _KINDS[modes[0]]


def _read(path: Path, absent: Any) -> Any:
    if not path.is_file():
        return absent
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is damaged ({error}); download it again") from error
    if type(found) is not type(absent):
        raise ConfigError(f"{path} is not a JSON {type(absent).__name__}; download it again")
    return found
