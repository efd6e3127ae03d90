"""The sampling that a model's authors recommend: its generation_config.json, or what we know."""

import json
from collections.abc import Mapping
from pathlib import Path

from outrider.errors import ConfigError
from outrider.hub.aliases import ALIASES

AUTO = "auto"
ENGINE_DEFAULTS = ("vllm", "none")  # vLLM's word for the defaults of the engine, and a plain one
_FILE = "generation_config.json"
# Names in the file and in our requests are the same.
SAMPLING = frozenset({"temperature", "top_p", "top_k", "min_p", "repetition_penalty"})
# Models whose file has no sampling, although their card recommends one.
_RECOMMENDED = {"smollm2": {"temperature": 0.2, "top_p": 0.9}}

SamplingDefaults = Mapping[str, float]
NO_DEFAULTS: SamplingDefaults = {}


def sampling_defaults(folder: Path, *, model: str, source: str = AUTO) -> SamplingDefaults:
    """Values for requests that do not have their own; empty for those of the engine.

    `source` is the value of --generation-config: auto, vllm, or a folder with such a file.
    """
    if source in ENGINE_DEFAULTS:
        return {}
    if source == AUTO:
        return _read(folder / _FILE) or _recommended(model)
    path = Path(source).expanduser()
    path = path / _FILE if path.is_dir() else path
    if not path.is_file():
        raise ConfigError(
            f"--generation-config {source} has no {_FILE}; use auto, vllm or a folder that has one"
        )
    return _read(path)


def _read(path: Path) -> SamplingDefaults:
    if not path.is_file():
        return {}
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        given = {name: fields[name] for name in sorted(SAMPLING) if fields.get(name) is not None}
        if all(type(value) in (int, float) for value in given.values()):
            return given
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise ConfigError(f"{path} is damaged ({error}); download it again") from error
    raise ConfigError(f"{path} has sampling that is no number; fix it, or use another")


def _recommended(model: str) -> SamplingDefaults:
    """By the alias or the hub id of the model; nothing is known about other folders."""
    source = ALIASES.get(model.lower())
    name = source.name if source else model.rpartition("/")[2].lower()
    for family, values in _RECOMMENDED.items():
        if name.startswith(family):
            return values
    return {}
