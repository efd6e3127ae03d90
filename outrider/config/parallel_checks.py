"""Refuses settings of several processes that cannot work, before any process is started."""

import importlib.util
from typing import get_args

from outrider.config.engine_config import NodesConfig, ParallelConfig, RankBackend
from outrider.config.install_hint import install_hint
from outrider.config.node_address import parse_address
from outrider.errors import ConfigError


def check_parallel(config: ParallelConfig) -> None:
    """Raise the first thing that is wrong with the user's numbers."""
    sizes = {"tensor_parallel_size": config.tensor, "data_parallel_size": config.data}
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int):  # from Python anything may come
            raise ConfigError(f"{name} must be a whole number, got {size!r}")
        if size < 1:
            raise ConfigError(f"{name} must be at least 1, got {size}")
    if config.is_expert_parallel and config.data == 1:
        raise ConfigError(
            "--enable-expert-parallel divides experts among data-parallel ranks; add "
            "--data-parallel-size, or leave it out: --tensor-parallel-size divides every expert"
        )
    _check_nodes(config)
    timeout_s = config.timeout_s
    is_number = isinstance(timeout_s, int | float) and not isinstance(timeout_s, bool)
    if not is_number or not timeout_s > 0:
        raise ConfigError(f"--rank-timeout / rank_timeout must be above 0, got {timeout_s!r}")


def _check_nodes(config: ParallelConfig) -> None:
    nodes, size = config.nodes, config.tensor * config.data
    if nodes.num < 1 or not 0 <= nodes.rank < nodes.num:
        raise ConfigError(
            f"--node-rank must be 0 to --nnodes - 1, got {nodes.rank} of {nodes.num} machines"
        )
    if size % nodes.num:
        raise ConfigError(
            f"{size} ranks cannot be divided among {nodes.num} machines; --nnodes must divide "
            "--tensor-parallel-size (times --data-parallel-size)"
        )
    if nodes.num > 1:
        parse_address(nodes.address)
    if nodes.timeout_s <= 0:
        raise ConfigError(f"--dist-timeout must be above 0, got {nodes.timeout_s!r}")
    _check_backend(nodes)


def _check_backend(nodes: NodesConfig) -> None:
    if nodes.backend not in get_args(RankBackend):
        raise ConfigError(
            f"--distributed-executor-backend must be mp or ray, got {nodes.backend!r}"
        )
    if nodes.backend == "mp":
        return
    if nodes.num > 1:
        raise ConfigError(
            "Ray finds the machines by itself; leave --nnodes out with "
            "--distributed-executor-backend ray"
        )
    if importlib.util.find_spec("ray") is None:
        raise ConfigError(
            "--distributed-executor-backend ray needs the package ray; install it with "
            f"{install_hint('ray')}"
        )
