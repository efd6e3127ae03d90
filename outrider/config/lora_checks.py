"""Refuses settings of adapters that cannot work, before a model is loaded."""

import json
from collections import Counter
from pathlib import Path

from outrider.config.engine_config import LoraConfig
from outrider.errors import ConfigError

_FIELDS = (("name", "path"), ("lora_name", "lora_path"))  # of vLLM, of SGLang
MAX_LORAS, MAX_LORA_RANK = 256, 512  # memory is reserved for all of them


def check_lora(config: LoraConfig) -> None:
    """Raise the first thing that is wrong with the adapters."""
    if not isinstance(config.is_enabled, bool):
        raise ConfigError(f"enable_lora must be a bool, got {config.is_enabled!r}")
    if not isinstance(config.for_drafts, bool):
        raise ConfigError(f"enable_draft_lora must be a bool, got {config.for_drafts!r}")
    if config.for_drafts and not config.is_enabled:
        raise ConfigError("--enable-draft-lora (enable_draft_lora) needs --enable-lora")
    sizes = (
        ("max_loras", config.max_loras, MAX_LORAS),
        ("max_lora_rank", config.max_rank, MAX_LORA_RANK),
    )
    for name, value, most in sizes:
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
            raise ConfigError(f"{name} must be between 1 and {most}, got {value!r}")
    if config.modules and not config.is_enabled:
        raise ConfigError("--lora-modules needs --enable-lora")
    twice = [
        name for name, count in Counter(name for name, _ in config.modules).items() if count > 1
    ]
    if twice:
        raise ConfigError(f"--lora-modules names {twice[0]!r} twice; choose other names")


def parse_module(text: str) -> tuple[str, str]:
    """The name and the path in NAME=PATH, or in a JSON object with these fields.

    A path alone is its own name, as in SGLang.
    """
    if text.lstrip().startswith("{"):
        name, path = _parse_object(text)
    else:
        name, sign, path = text.partition("=")
        if not sign:
            name = path = text
    if not name or not path:
        raise ConfigError(f"--lora-modules needs NAME=PATH, got {text!r}")
    return name, str(Path(path).expanduser())


def _parse_object(text: str) -> tuple[str, str]:
    """The name and the path as vLLM spells them (name, path) or SGLang (lora_name, lora_path)."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"--lora-modules has JSON that cannot be read: {error}") from error
    for names in _FIELDS:
        found = [fields.get(each) for each in names]
        if all(isinstance(each, str) for each in found):
            return str(found[0]), str(found[1])
    raise ConfigError(
        f'--lora-modules needs NAME=PATH or {{"name": NAME, "path": PATH}}, got {text}'
    )
