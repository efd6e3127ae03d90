"""Arguments of vLLM's `LLM` that change nothing here, and the values for which that is true."""

from collections.abc import Mapping
from typing import Any

from outrider.errors import ConfigError

_ONLY: dict[str, Any] = {"tensor_parallel_size": 1, "trust_remote_code": False, "tokenizer": None}


def check_inert(arguments: Mapping[str, Any]) -> None:
    """Refuse an unknown argument, or a value that would have to change something."""
    for name, value in arguments.items():
        if name not in _ONLY:
            known = ", ".join(_ONLY)
            raise ConfigError(f"LLM has no argument {name!r}; of vLLM's it also takes {known}")
        _check_only(name, value)


def _check_only(name: str, value: object) -> None:
    only = _ONLY[name]
    if type(value) is not type(only) or value != only:
        raise ConfigError(f"{name}={value!r} is not supported, only {only!r} is; leave it out")
