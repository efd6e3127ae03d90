"""Refuses roles that cannot work, before a model is loaded."""

import importlib.util

from outrider.config.engine_config import EngineConfig
from outrider.config.install_hint import install_hint
from outrider.config.node_address import read_key
from outrider.errors import ConfigError


def nixl_package() -> str:
    """The installed package of NIXL; empty if there is none.

    `nixl` chooses among the packages for each CUDA by itself. The one for CUDA 13 works alone, too.
    """
    for name in ("nixl", "nixl_cu13"):
        if importlib.util.find_spec(name) is not None:
            return name
    return ""


def check_role(config: EngineConfig) -> None:
    """Raise the first thing that is wrong with the role."""
    role, parallel = config.disaggregation, config.parallel
    if role.mode == "null":
        return
    read_key()
    if parallel.tensor * parallel.data > 1:
        raise ConfigError(
            f"--disaggregation-mode {role.mode} works with one process per model; leave out "
            "--tensor-parallel-size and --data-parallel-size"
        )
    if config.lora.is_enabled:
        raise ConfigError(
            f"--disaggregation-mode {role.mode} has no adapters; leave out --enable-lora"
        )
    if not config.cache.prefix:
        raise ConfigError(
            "KV comes from a prefill server as a cached prefix; leave out "
            f"--no-enable-prefix-caching with --disaggregation-mode {role.mode}"
        )
    if role.backend == "nixl" and not nixl_package():
        raise ConfigError(
            f"the transfer backend nixl is not installed; install it with "
            f"{install_hint('disagg')}, or use --disaggregation-transfer-backend tcp"
        )
