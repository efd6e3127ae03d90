"""Flags from a YAML file: `--config FILE`. Flags on the command line come later and win."""

import json
from pathlib import Path
from typing import Any

from outrider.config.install_hint import install_hint
from outrider.config.peer_meaning import is_peer_flag, needs_value
from outrider.errors import ConfigError

FLAG = "--config"


def with_config_file(arguments: list[str], flags: dict[str, tuple[str, str]]) -> list[str]:
    """The arguments of a command, with those of its file before them.

    `flags` has, by every name of a flag, how it is switched on and off; off is empty for a flag
    that takes a value.
    """
    path = _find(arguments)
    if path is None:
        return arguments
    command, rest = arguments[:1], arguments[1:]
    given = [each for name, value in _read(path).items() for each in _flag(name, value, flags)]
    return [*command, *given, *rest]


def _find(arguments: list[str]) -> Path | None:
    for index, argument in enumerate(arguments):
        name, _, value = argument.partition("=")
        if name == FLAG:
            return Path(value or "".join(arguments[index + 1 : index + 2])).expanduser()
    return None


def _read(path: Path) -> dict[str, Any]:
    try:
        import yaml  # type: ignore[import-untyped]
    except ImportError as error:
        raise ConfigError(f"--config needs PyYAML; {install_hint('serve')}") from error
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"--config {path} cannot be read ({reason}); check the file") from error
    if not isinstance(values, dict):
        raise ConfigError(f"--config {path} must hold flags such as 'port: 8000'")
    return values


def _flag(name: object, value: Any, flags: dict[str, tuple[str, str]]) -> list[str]:
    """One entry of the file as arguments."""
    flag = f"--{str(name).replace('_', '-')}"
    if flag not in flags and is_peer_flag(flag):
        return _peer_flag(flag, value)
    if flag not in flags:
        raise ConfigError(f"the file of --config has {name!r}, and there is no flag {flag}")
    on, off = flags[flag]
    if isinstance(value, bool) and (off or on == flag):
        return [on] if value else [off] if off else []
    if isinstance(value, list):
        return [part for each in value for part in (flag, str(each))]
    text = json.dumps(value) if isinstance(value, dict) else str(value)
    return [] if value is None else [flag, text]


def _peer_flag(flag: str, value: Any) -> list[str]:
    """A flag of vLLM or SGLang; its meaning is found with those of the command line."""
    if value is None:
        return []
    if isinstance(value, list) and needs_value(flag):
        return [flag, *map(str, value)]
    is_text = isinstance(value, str)
    return [f"{flag}={value if is_text else json.dumps(value)}"]
