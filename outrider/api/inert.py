"""Arguments of vLLM's `LLM` that change nothing here, and the values for which that is true."""

from collections.abc import Mapping
from typing import Any

from outrider.errors import ConfigError

_ONLY: dict[str, Any] = {"tensor_parallel_size": 1, "trust_remote_code": False, "tokenizer": None}
# Which executor runs is `executor`'s to say, and how large the cache is `kv_tokens`'.
_ANY: dict[str, tuple[type, ...]] = {
    "enforce_eager": (bool,),
    "gpu_memory_utilization": (float, int),
}


def check_inert(arguments: Mapping[str, Any]) -> None:
    """Refuse an argument that would have to change something, or that nobody knows."""
    for name, value in arguments.items():
        if name in _ONLY:
            _check_only(name, value)
        elif name not in _ANY:
            known = ", ".join((*_ONLY, *_ANY))
            raise ConfigError(f"LLM has no argument {name!r}; of vLLM's it also takes {known}")
        elif not isinstance(value, _ANY[name]):
            raise ConfigError(f"{name} must be a {_ANY[name][0].__name__}, got {value!r}")


def _check_only(name: str, value: object) -> None:
    only = _ONLY[name]
    if type(value) is not type(only) or value != only:
        raise ConfigError(f"{name}={value!r} is not supported, only {only!r} is; leave it out")
